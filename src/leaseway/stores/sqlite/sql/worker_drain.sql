-- Ask a worker to stop.
UPDATE workers SET drain_requested = 1 WHERE name = :name
