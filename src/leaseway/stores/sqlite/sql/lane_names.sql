-- Queue, tenant and needs of lanes.
SELECT id, queue, tenant, needs FROM lanes WHERE id IN (SELECT value FROM json_each(:lanes))
