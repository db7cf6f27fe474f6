UPDATE leaseway_runs
   SET state = :state, why = :why, notes = :notes, finished_at = :now
 WHERE id = :id AND target = :target
RETURNING id
