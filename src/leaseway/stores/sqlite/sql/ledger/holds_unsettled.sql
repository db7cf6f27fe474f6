SELECT id FROM (SELECT id, deadline FROM holds WHERE state IN ('held', 'dispatched')
                UNION ALL SELECT id, deadline FROM holds WHERE state = 'captured') AS unsettled
 WHERE EXISTS (SELECT 1 FROM hold_lines JOIN budget_windows ON budget_windows.id = window_id
                WHERE hold = unsettled.id AND name = :name)
 ORDER BY deadline DESC, id LIMIT :limit
