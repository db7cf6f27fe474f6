-- Lanes to claim from, the one that was served longest ago first.
SELECT id, queue, tenant, ready FROM lanes
 WHERE queue IN (SELECT value FROM json_each(:queues)) AND ready > 0
 ORDER BY served_at, queue, tenant LIMIT :lanes_max
