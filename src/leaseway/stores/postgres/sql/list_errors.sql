-- The failed attempts of a job, oldest first. They are in `errors` until the job finishes, and then in its history row.
SELECT job, attempt, at, code, message, traceback FROM (
  SELECT seq, job, attempt, at, code, message, traceback FROM :schema.errors WHERE job = $1
  UNION ALL
  SELECT place, id, (fault ->> 0)::integer, (fault ->> 1)::bigint, fault ->> 2, fault ->> 3, fault ->> 4
    FROM :schema.history CROSS JOIN LATERAL json_array_elements(errors) WITH ORDINALITY AS each (fault, place)
   WHERE id = $1) AS faults
 ORDER BY seq
