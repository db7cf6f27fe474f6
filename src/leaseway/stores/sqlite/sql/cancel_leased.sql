-- Request the cancellation of a running job.
UPDATE jobs SET cancel_requested = 1 WHERE id = :id AND state = 'leased'
