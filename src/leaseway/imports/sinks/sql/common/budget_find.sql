SELECT requests_max
  FROM leaseway_runs
 WHERE id = :id AND target = :target
