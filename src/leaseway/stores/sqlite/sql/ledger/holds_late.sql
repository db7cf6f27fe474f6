SELECT id FROM holds WHERE state IN ('held', 'dispatched') AND deadline <= :now ORDER BY deadline, id LIMIT :limit
