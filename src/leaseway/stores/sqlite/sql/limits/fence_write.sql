INSERT INTO fence (one, identity, since, ahead_us, latest) VALUES (1, :identity, :since, :ahead_us, :latest)
ON CONFLICT (one) DO UPDATE SET
    identity = excluded.identity, since = excluded.since, ahead_us = excluded.ahead_us, latest = excluded.latest
