-- Every schedule with its place in time.
SELECT name, kind, cron, tz, missed, seen, last_fire, paused FROM :schema.schedules ORDER BY name
