-- Pause or resume a schedule. Fires missed while paused are dropped.
UPDATE schedules SET paused = :paused, seen = CASE WHEN paused AND NOT :paused THEN :now ELSE seen END
 WHERE name = :name
RETURNING name
