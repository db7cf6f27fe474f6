-- Queue and tenant of lanes.
SELECT id, queue, tenant FROM lanes WHERE id IN (SELECT value FROM json_each(:lanes))
