-- The holds of budget $1 that are open or captured, the latest deadline first, at most $2: one row per line.
WITH found AS (
  SELECT id, state, owner, ttl_us, deadline, corrected_by
    FROM (SELECT * FROM :schema.holds WHERE state IN ('held', 'dispatched')
          UNION ALL SELECT * FROM :schema.holds WHERE state = 'captured') AS unsettled
   WHERE EXISTS (SELECT 1 FROM :schema.hold_lines JOIN :schema.budget_windows AS known ON known.id = window_id
                  WHERE hold = unsettled.id AND name = $1)
   ORDER BY deadline DESC, id LIMIT $2)
SELECT found.id, state, owner, ttl_us, deadline, corrected_by, name, budget, unit, starts_at, ends_at, label,
       amount_micros, actual_micros
  FROM found JOIN :schema.hold_lines ON hold = found.id JOIN :schema.budget_windows AS known ON known.id = window_id
 ORDER BY deadline DESC, found.id, place
