-- What the store knows of its server: the clock, the timeline, and whether a standby confirms commits.

-- The clock. leaseway.domain.store_clock states the rule.
--
--   wall_us (the server's clock) ─► now_us (the store's) ─► leases, retries, schedules, limits
--
-- now_us and expiry_grace_us are called everywhere, so they cost nothing while the server's clock is right. When it was
-- set back, watch_clock replaces both by functions that read held_clock, and later puts them back.

CREATE FUNCTION wall_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN (extract(epoch FROM clock_timestamp()) * 1000000)::bigint;

CREATE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE RETURN wall_us();

-- How much later than at its end a lease, a hold or a call in flight expires. Until a step of the clock is noticed, leases
-- are granted by the lower time. When time goes on where it was, they must not expire early.
CREATE FUNCTION expiry_grace_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE RETURN 0::bigint;

-- One row while time is held: it was `anchor` when the server's clock said `at_wall`.
CREATE TABLE held_clock (
  anchor bigint NOT NULL,
  at_wall bigint NOT NULL,
  grace_us bigint NOT NULL,
  grace_until bigint NOT NULL
);

-- Clients confirm the anchor every few seconds. Without a confirmation time advances by ten seconds at most, because the
-- server's clock may be set right at any moment; that must not move time by the same step once more.
CREATE FUNCTION held_now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN coalesce(
  (SELECT greatest(wall, anchor + least(greatest((wall - at_wall) * 9 / 10, 0), 10000000))
     FROM held_clock CROSS JOIN (SELECT wall_us() AS wall OFFSET 0) AS clock),
  wall_us());

CREATE FUNCTION held_grace_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE
RETURN coalesce((SELECT grace_us FROM held_clock WHERE wall_us() < grace_until), 0);

CREATE FUNCTION use_clock(now_name text, grace_name text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  EXECUTE format('CREATE OR REPLACE FUNCTION now_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE RETURN %s', now_name);
  EXECUTE format('CREATE OR REPLACE FUNCTION expiry_grace_us() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE RETURN %s',
                 grace_name);
END $$;

-- Hold the time at `anchor`, which the server's clock has not reached. `back_us`: how far time has gone back now.
CREATE FUNCTION hold_clock(new_anchor bigint, back_us bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  wall bigint := wall_us();
  grace bigint := expiry_grace_us() + back_us;
BEGIN
  UPDATE held_clock SET anchor = new_anchor, at_wall = wall,
         grace_us = CASE WHEN back_us > 0 THEN grace ELSE grace_us END,
         grace_until = CASE WHEN back_us > 0 THEN wall + grace ELSE grace_until END;
  IF NOT FOUND THEN
    INSERT INTO held_clock (anchor, at_wall, grace_us, grace_until) VALUES (new_anchor, wall, grace, wall + grace);
    PERFORM use_clock('held_now_us()', 'held_grace_us()');
  END IF;
END $$;

-- Every client calls this once in a while. `least_now` is what this clock must have reached according to the client's own
-- monotonic clock; NULL in its first call, which compares with the last claim. Returns the time.
CREATE FUNCTION watch_clock(least_now bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE
  expected CONSTANT bigint := coalesce(least_now, (SELECT max(served_at) FROM flows), 0);
  is_held CONSTANT boolean := EXISTS (SELECT 1 FROM held_clock);
  instant bigint := now_us();
  anchor bigint := greatest(instant, expected);
  is_back CONSTANT boolean := instant < expected - 1000000;
BEGIN
  IF NOT (is_held OR is_back) OR NOT pg_try_advisory_xact_lock(hashtext('leaseway.clock'), hashtext(current_schema())) THEN
    RETURN instant;
  END IF;
  -- More than an hour is not made up for: the server's clock may have been wrong before, and right now.
  IF anchor - wall_us() BETWEEN 1 AND 3600000000 THEN
    PERFORM hold_clock(anchor, CASE WHEN is_back THEN expected - instant ELSE 0 END);
    RETURN anchor;
  END IF;
  IF is_held THEN
    DELETE FROM held_clock;
    PERFORM use_clock('wall_us()', '0::bigint');
  END IF;
  RETURN wall_us();
END $$;

-- All fences of this timeline are larger than this number, and all fences of earlier timelines are not. A promotion
-- starts a new timeline, so a fence whose claim was lost in the failover is not assigned a second time. On the first
-- timeline, fences start at 1.
CREATE FUNCTION fence_floor() RETURNS bigint LANGUAGE sql VOLATILE
RETURN ((('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::bigint - 1) << 32);

DO $try$
BEGIN
  PERFORM fence_floor();
EXCEPTION WHEN OTHERS THEN
  -- This server has no write-ahead log of its own: its failover loses no commit.
  CREATE OR REPLACE FUNCTION fence_floor() RETURNS bigint LANGUAGE sql VOLATILE RETURN 0::bigint;
END $try$;

-- Called by a repetition that finds what its first try has written. Such a transaction has nothing to write, and a commit
-- without a write waits neither for the disk nor for a synchronous standby. But the first try may have been cut off while
-- it waited: its rows are visible after a restart of the server, and a failover can lose them. An empty message in the
-- write-ahead log makes this commit wait for everything before it. It returns false, for `RETURN FOUND OR …`.
CREATE FUNCTION await_replication() RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM pg_logical_emit_message(true, 'leaseway', '');
  RETURN false;
END $$;
