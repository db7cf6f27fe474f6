UPDATE leaseway_runs
   SET requests_max = :requests_max
 WHERE id = :id AND target = :target
RETURNING id
