-- Make a finished job ready again, with fresh attempts and its old cursor.
UPDATE jobs
   SET state = 'ready', attempts = 0, run_at = :now, finished_at = NULL, result = NULL, cancel_requested = 0,
       last_token = NULL
 WHERE seq = :seq AND state IN ('failed', 'cancelled')
