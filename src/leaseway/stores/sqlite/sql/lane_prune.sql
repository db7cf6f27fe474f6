-- Delete lanes without jobs, a bounded number at a time.
DELETE FROM lanes
 WHERE id IN (SELECT id FROM lanes
               WHERE ready = 0 AND scheduled = 0 AND leased = 0 AND done = 0 AND failed = 0 AND cancelled = 0
               ORDER BY id LIMIT :limit)
