-- The bound is in the statement that takes: two who ask at once are asked one after the other.
UPDATE leaseway_runs
   SET requests = requests + :requests
 WHERE id = :id AND target = :target AND requests + :requests <= requests_max
RETURNING requests
