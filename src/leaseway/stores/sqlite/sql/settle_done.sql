-- End the leases of one claim as done: what most settlements are, and the cheapest way to say it.
-- The same fence as settle.sql: no row back for a settlement whose token is not the job's.
UPDATE jobs
   SET stage = 3, finished_at = :now, result = done.value,
       last_token = token, token = NULL, owner = NULL, until = NULL
  FROM json_each(:results) AS done
 WHERE jobs.id = done.key AND jobs.token = :token
RETURNING jobs.id, lane
