-- Open the lanes whose needs name a limit or a budget that has changed, a bounded number at a time.
UPDATE lanes SET closed_until = NULL, closed_why = NULL
 WHERE id IN (SELECT id FROM lanes
               WHERE closed_until IS NOT NULL AND instr(needs, :quoted) AND (:tenant IS NULL OR tenant = :tenant)
               ORDER BY closed_until, id LIMIT :limit)
