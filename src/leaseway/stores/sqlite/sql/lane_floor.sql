-- How far everybody was when a lane of these queues was served last.
SELECT coalesce(max((SELECT max(vfloor) FROM lanes WHERE queue = value)), 0) FROM json_each(:queues)
