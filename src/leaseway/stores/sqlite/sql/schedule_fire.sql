-- Advance a schedule. No row is returned if another process has advanced it.
UPDATE schedules SET seen = :upto, last_fire = :upto
 WHERE name = :name AND seen = :seen AND paused = 0
RETURNING kind
