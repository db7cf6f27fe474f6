-- Lease jobs. The attempt is counted here, so that a job that kills its worker is not retried for ever.
UPDATE jobs
   SET state = 'leased', attempts = attempts + 1, fence = fence + 1,
       token = :token, owner = :worker, until = :now + lease_us
 WHERE seq IN (SELECT value FROM json_each(:jobs)) AND state = 'ready'
