-- The jobs that are still leased under this token, with their lanes and by how much their results grow, packed into one
-- row.
SELECT json_group_array(json_array(job_sizes.id, lane, coalesce(length(CAST(done.value AS BLOB)), 0) - result))
  FROM json_each(:results) AS done CROSS JOIN job_sizes ON job_sizes.id = done.key AND job_sizes.token = :token
