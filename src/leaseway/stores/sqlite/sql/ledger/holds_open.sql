SELECT id FROM holds
 WHERE state IN ('held', 'dispatched')
   AND EXISTS (SELECT 1 FROM hold_lines JOIN budget_windows ON budget_windows.id = window_id
                WHERE hold = holds.id AND budget = :name)
