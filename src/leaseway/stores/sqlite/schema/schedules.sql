-- Schedules. Fires up to the instant `seen` are handled.
CREATE TABLE schedules (
  name TEXT PRIMARY KEY,
  kind TEXT NOT NULL,
  cron TEXT NOT NULL,
  tz TEXT NOT NULL,
  missed TEXT NOT NULL,
  seen INTEGER NOT NULL,
  last_fire INTEGER,
  paused INTEGER NOT NULL DEFAULT 0
) STRICT;
