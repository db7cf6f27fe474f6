-- What these jobs keep besides their payloads, by lane.
SELECT lane, sum(result + rest)
  FROM json_each(:ids) AS asked CROSS JOIN job_sizes ON job_sizes.id = asked.value GROUP BY lane
