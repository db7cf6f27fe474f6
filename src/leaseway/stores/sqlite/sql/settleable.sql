-- Which of these jobs are still leased under this token, and in which lanes? One row with all of them.
SELECT json_group_array(json_array(jobs.id, lane))
  FROM json_each(:results) AS done CROSS JOIN jobs ON jobs.id = done.key AND jobs.token = :token
