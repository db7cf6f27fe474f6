-- The ids in a range, of holds that are held and not dispatched. The partial index has only those.
SELECT id FROM holds WHERE state = 'held' AND id >= :low AND id < :high ORDER BY id LIMIT :limit
