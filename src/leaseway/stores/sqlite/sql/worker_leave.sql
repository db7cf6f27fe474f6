-- Remove a worker that has stopped.
DELETE FROM workers WHERE name = :name
