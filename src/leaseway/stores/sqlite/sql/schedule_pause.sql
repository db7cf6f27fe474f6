-- Stop or resume. Resuming starts from now: what was missed meanwhile is dropped.
UPDATE schedules SET paused = :paused, seen = CASE WHEN paused AND NOT :paused THEN :now ELSE seen END
 WHERE name = :name
RETURNING name
