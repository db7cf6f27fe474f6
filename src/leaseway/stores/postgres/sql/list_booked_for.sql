-- The holds with ids from $1 up to $2 that wait for a window which has not begun, at most $3: one row per line. $4 now
-- (NULL: the server's).
WITH found AS (
  SELECT held.id, state, owner, ttl_us, deadline, corrected_by
    FROM :schema.holds AS held JOIN :schema.hold_lines ON hold = held.id
    JOIN :schema.budget_windows AS known ON known.id = window_id
   WHERE held.id >= $1 AND held.id < $2 AND state = 'held'
   GROUP BY held.id
  HAVING max(starts_at) > coalesce($4::bigint, :schema.now_us())
   ORDER BY max(starts_at), held.id LIMIT $3)
SELECT found.id, state, owner, ttl_us, deadline, corrected_by, name, budget, unit, starts_at, ends_at, label,
       amount_micros, actual_micros
  FROM found JOIN :schema.hold_lines ON hold = found.id JOIN :schema.budget_windows AS known ON known.id = window_id
 ORDER BY found.id, place
