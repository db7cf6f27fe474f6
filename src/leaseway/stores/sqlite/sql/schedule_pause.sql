-- Stop or resume. Resuming starts from now: what was missed meanwhile is dropped.
UPDATE schedules SET paused = :paused, seen = CASE WHEN :paused THEN seen ELSE :now END
 WHERE name = :name
RETURNING name
