-- All schedules.
SELECT name, kind, cron, tz, missed, seen, last_fire, paused FROM schedules ORDER BY name
