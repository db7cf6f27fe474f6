-- The largest floor of the lanes of these queues.
SELECT coalesce(max((SELECT max(vfloor) FROM lanes WHERE queue = value)), 0) FROM json_each(:queues)
