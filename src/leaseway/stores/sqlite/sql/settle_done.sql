-- End the leases of one claim as done: what most settlements are, and the cheapest way to say it.
-- The same fence as in settle.sql: nothing is written for a job whose token is another one.
UPDATE jobs
   SET state = 'done', finished_at = :now, result = done.value,
       last_token = token, token = NULL, owner = NULL, until = NULL
  FROM json_each(:results) AS done
 WHERE jobs.id = done.key AND jobs.token = :token
