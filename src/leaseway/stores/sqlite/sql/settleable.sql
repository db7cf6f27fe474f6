-- The jobs that are still leased under this token, with their lanes, packed into one row.
SELECT json_group_array(json_array(jobs.id, lane))
  FROM json_each(:results) AS done CROSS JOIN jobs ON jobs.id = done.key AND jobs.token = :token
