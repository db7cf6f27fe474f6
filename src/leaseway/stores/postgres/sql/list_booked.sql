-- The holds of budget $1 that wait for a window which has not begun, after the place ($2, $3), at most $4: one row per
-- line. $5 now (NULL: the server's).
WITH found AS (
  SELECT held.id, state, owner, ttl_us, deadline, corrected_by
    FROM :schema.holds AS held JOIN :schema.hold_lines ON hold = held.id
    JOIN :schema.budget_windows AS known ON known.id = window_id
   WHERE state = 'held'
   GROUP BY held.id
  HAVING bool_or($1 IN (name, budget)) AND max(starts_at) > coalesce($5::bigint, :schema.now_us())
         AND (max(starts_at), held.id) > ($2::bigint, $3::text)
   ORDER BY max(starts_at), held.id LIMIT $4)
SELECT found.id, state, owner, ttl_us, deadline, corrected_by, name, budget, unit, starts_at, ends_at, label,
       amount_micros, actual_micros
  FROM found JOIN :schema.hold_lines ON hold = found.id JOIN :schema.budget_windows AS known ON known.id = window_id
 ORDER BY found.id, place
