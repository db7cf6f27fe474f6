-- The largest floor of the flows of these queues.
SELECT coalesce(max((SELECT max(vfloor) FROM flows WHERE queue = value)), 0) FROM json_each(:queues)
