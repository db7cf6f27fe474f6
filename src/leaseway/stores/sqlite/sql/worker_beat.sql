-- The heartbeat of a worker that is listed.
UPDATE workers SET seen_at = :now, beat = :beat WHERE name = :name RETURNING drain_requested
