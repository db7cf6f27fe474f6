-- The lines of these holds, those of a hold one after the other, packed into one row.
SELECT json_group_array(json_array(hold, state, owner, ttl_us, deadline, corrected_by, name, budget, unit, starts_at, ends_at,
                                   label, amount_micros, actual_micros))
  FROM (SELECT * FROM json_each(:ids) AS wanted CROSS JOIN holds ON holds.id = wanted.value
          JOIN hold_lines ON hold = holds.id JOIN budget_windows ON budget_windows.id = window_id
         ORDER BY hold, place)
