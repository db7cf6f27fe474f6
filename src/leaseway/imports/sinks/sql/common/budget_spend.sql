-- The limit is part of the update, so concurrent calls cannot exceed it.
UPDATE leaseway_runs
   SET requests = requests + :requests
 WHERE id = :id AND target = :target AND requests + :requests <= requests_max
RETURNING requests
