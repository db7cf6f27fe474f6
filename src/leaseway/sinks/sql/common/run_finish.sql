UPDATE leaseway_runs
   SET state = :state, why = :why, finished_at = :now
 WHERE id = :id AND target = :target
RETURNING id
