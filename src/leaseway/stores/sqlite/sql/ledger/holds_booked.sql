-- Holds that wait for a window which has not begun: those of one budget, by the start of that window.
SELECT id FROM (SELECT holds.id AS id, max(starts_at) AS start, max(:budget IN (name, budget)) AS is_wanted
                  FROM holds JOIN hold_lines ON hold = holds.id JOIN budget_windows ON budget_windows.id = window_id
                 WHERE state IN ('held', 'dispatched') AND state = 'held' GROUP BY holds.id) AS booked
 WHERE is_wanted AND start > :now AND (start, id) > (:start, :id)
 ORDER BY start, id LIMIT :limit
