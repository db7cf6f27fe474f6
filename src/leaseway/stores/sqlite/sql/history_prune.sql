-- Delete the rows of old periods.
DELETE FROM work_history WHERE id IN (SELECT id FROM work_history WHERE level = :level AND at < :before LIMIT :limit)
