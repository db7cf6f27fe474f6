-- Settle leases. The token is cleared when a lease ends, so comparing tokens is the whole fence.
-- A settlement without a returned row is rejected, and nothing of it was written.
-- A job that is to be cancelled does not become pending again.
UPDATE jobs
   SET state = CASE WHEN settled.state IN ('ready', 'scheduled') AND cancel_requested
                    THEN 'cancelled' ELSE settled.state END,
       run_at = coalesce(settled.run_at, jobs.run_at),
       finished_at = CASE WHEN settled.state NOT IN ('ready', 'scheduled') OR cancel_requested THEN :now END,
       attempts = max(attempts - settled.returns_attempt, 0),
       last_token = jobs.token, token = NULL, owner = NULL, until = NULL,
       last_error_code = coalesce(settled.code, last_error_code),
       last_error_at = CASE WHEN settled.code IS NULL THEN last_error_at ELSE :now END,
       progress = coalesce(settled.progress, jobs.progress),
       result = settled.result
  FROM (SELECT value ->> 0 AS id, value ->> 1 AS token, value ->> 2 AS state, value ->> 3 AS run_at,
               value ->> 4 AS returns_attempt, value ->> 5 AS result, value ->> 6 AS code, value ->> 7 AS progress
          FROM json_each(:settlements)) AS settled
 WHERE jobs.id = settled.id AND jobs.token = settled.token
RETURNING id, lane, state, attempts
