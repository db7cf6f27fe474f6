-- A job that runs is asked to stop.
UPDATE jobs SET cancel_requested = 1 WHERE id = :id AND state = 'leased'
