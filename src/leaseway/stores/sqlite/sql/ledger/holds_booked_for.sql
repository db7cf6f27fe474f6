-- Holds that wait for a window which has not begun: those whose ids are in a range.
SELECT holds.id
  FROM holds JOIN hold_lines ON hold = holds.id JOIN budget_windows ON budget_windows.id = window_id
 WHERE holds.id >= :low AND holds.id < :high AND state = 'held'
 GROUP BY holds.id HAVING max(starts_at) > :now ORDER BY max(starts_at), holds.id LIMIT :limit
