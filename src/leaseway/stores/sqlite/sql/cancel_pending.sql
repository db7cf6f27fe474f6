-- Cancel a pending job at once.
UPDATE jobs SET state = 'cancelled', finished_at = :now WHERE id = :id AND state IN ('ready', 'scheduled') RETURNING lane
