-- The rows of the periods that begin in this time, behind the row :after of the first one.
SELECT id, level, at, tenant, queue, kind, cell FROM work_history
 WHERE level = :level AND at >= :since AND at < :until AND (:tenant IS NULL OR tenant = :tenant)
   AND (at > :since OR id > :after)
 ORDER BY at, id LIMIT :limit
