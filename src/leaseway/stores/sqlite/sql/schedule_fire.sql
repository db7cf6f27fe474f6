-- Move a schedule on, unless another process did. No row back: it did.
UPDATE schedules SET seen = :upto, last_fire = :upto
 WHERE name = :name AND seen = :seen AND paused = 0
RETURNING kind
