-- Create or change a schedule. If its times changed, it has no missed fires.
INSERT INTO schedules (name, kind, cron, tz, missed, seen) VALUES (:name, :kind, :cron, :tz, :missed, :now)
ON CONFLICT (name) DO UPDATE
   SET kind = excluded.kind, missed = excluded.missed, cron = excluded.cron, tz = excluded.tz,
       seen = CASE WHEN schedules.cron = excluded.cron AND schedules.tz = excluded.tz
                   THEN schedules.seen ELSE excluded.seen END
