-- Lease jobs. The attempt is counted here, so that a job that kills its worker is not retried for ever. A delayed copy
-- of a claim can lease a job again under a token that has settled it: from now on the token stands for the new lease.
-- The bounds matter only if a row is damaged: a sum that overflows would be a REAL, which the table refuses, and so one
-- row would fail the claims of all others.
UPDATE jobs
   SET state = 'leased', attempts = min(attempts + 1, 2147483647), fence = min(fence + 1, 9223372036854775807),
       token = :token, last_token = nullif(last_token, :token), owner = :worker, until = :now + min(max(lease_us, :lease_us_min), :lease_us_max)
 WHERE seq IN (SELECT value FROM json_each(:jobs)) AND state = 'ready'
