UPDATE leaseway_runs
   SET notes = :notes
 WHERE id = :id AND target = :target
