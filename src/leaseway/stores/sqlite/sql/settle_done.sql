-- Settle leases of one claim as done: the most frequent case, with the cheapest statement.
-- The fence is that of settle.sql: a job with another token is not written.
UPDATE jobs
   SET state = 'done', finished_at = :now, result = done.value,
       last_token = token, token = NULL, owner = NULL, until = NULL
  FROM json_each(:results) AS done
 WHERE jobs.id = done.key AND jobs.token = :token
