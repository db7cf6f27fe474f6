-- A job that waits is cancelled at once.
UPDATE jobs SET stage = 5, finished_at = :now WHERE id = :id AND stage IN (0, 1) RETURNING lane
