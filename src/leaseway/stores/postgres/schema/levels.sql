-- Levels: the state of a limit's buckets, computed in microseconds as leaseway.domain.limits.buckets does.

-- Division, rounded up.
CREATE FUNCTION ceil_div(number bigint, by bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN number > 0 THEN (number - 1) / by + 1 ELSE number / by END;

CREATE FUNCTION ns_to_us(ns bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN ns > 0 THEN (ns - 1) / 1000 + 1 ELSE ns / 1000 END;

-- The positions of the names in the order in which every transaction locks them.
CREATE FUNCTION lock_order(names text[]) RETURNS SETOF integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT place::integer FROM unnest(names) WITH ORDINALITY AS asked (name, place) ORDER BY name COLLATE "C"
$$;

-- Lock the level of this name; create it if it does not exist.
CREATE FUNCTION lock_level(wanted text, limit_name text) RETURNS levels LANGUAGE plpgsql AS $$
DECLARE level levels;
BEGIN
  -- The row can be deleted between the INSERT and the next SELECT, but hardly ever twice.
  FOR attempt IN 1 .. 100 LOOP
    SELECT * INTO level FROM levels WHERE of_limit = limit_name AND name = wanted FOR UPDATE;
    IF FOUND THEN
      RETURN level;
    END IF;
    -- No other transaction sees a row that was inserted here, so it is as good as locked.
    INSERT INTO levels (name, of_limit) VALUES (wanted, limit_name) ON CONFLICT DO NOTHING RETURNING * INTO level;
    IF FOUND THEN
      RETURN level;
    END IF;
  END LOOP;
  RAISE EXCEPTION 'the level of % was deleted 100 times while it was being locked', wanted
    USING ERRCODE = 'lock_not_available';
END $$;

CREATE FUNCTION lock_levels(names text[], limit_names text[]) RETURNS levels[] LANGUAGE plpgsql AS $$
DECLARE
  place integer;
  held levels[];
BEGIN
  FOR place IN SELECT lock_order(names) LOOP
    held[place] := lock_level(names[place], limit_names[place]);
  END LOOP;
  RETURN held;
END $$;

-- Limits that are logged: what leaseway.domain.limits.sliding_log decides.

-- Until when a use at this instant counts: a window after the end of its slice.
CREATE FUNCTION counts_until(window_us bigint, at bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN (at / greatest(window_us / 60, 1) + 1) * greatest(window_us / 60, 1) + window_us;

-- Uses of one slice are one element.
CREATE FUNCTION log_use(level levels, window_us bigint, until bigint, amount bigint) RETURNS levels LANGUAGE plpgsql AS $$
DECLARE bucket integer := array_position(level.windows, window_us);
BEGIN
  level.tats[bucket] := greatest(level.tats[bucket], until);
  FOR place IN 1 .. cardinality(level.used_until) LOOP
    IF level.used_windows[place] = window_us AND level.used_until[place] = until THEN
      level.used_amounts[place] := level.used_amounts[place] + amount;
      RETURN level;
    END IF;
  END LOOP;
  level.used_windows := level.used_windows || window_us;
  level.used_until := level.used_until || until;
  level.used_amounts := level.used_amounts || amount;
  RETURN level;
END $$;

CREATE FUNCTION log_call(level levels, sized sizing, instant bigint, amount bigint) RETURNS levels LANGUAGE plpgsql AS $$
DECLARE window_us bigint;
BEGIN
  IF amount > 0 THEN
    FOREACH window_us IN ARRAY sized.windows LOOP
      level := log_use(level, window_us, counts_until(window_us, instant), amount);
    END LOOP;
  END IF;
  RETURN level;
END $$;

CREATE FUNCTION keep_counted(level levels, sized sizing, instant bigint) RETURNS levels LANGUAGE plpgsql AS $$
DECLARE
  kept_windows bigint[];
  kept_until bigint[];
  kept_amounts bigint[];
BEGIN
  SELECT array_agg(window_us ORDER BY place), array_agg(until ORDER BY place), array_agg(amount ORDER BY place)
    INTO kept_windows, kept_until, kept_amounts
    FROM unnest(level.used_windows, level.used_until, level.used_amounts)
         WITH ORDINALITY AS uses (window_us, until, amount, place)
   WHERE until > instant AND window_us = ANY (sized.windows);
  level.used_windows := coalesce(kept_windows, '{}');
  level.used_until := coalesce(kept_until, '{}');
  level.used_amounts := coalesce(kept_amounts, '{}');
  RETURN level;
END $$;

-- The log at this moment. What a holder has reserved and not reported in time is used. A window without a log is used up
-- where a bucket would be empty.
CREATE FUNCTION relog_level(before levels, sized sizing, instant bigint) RETURNS levels LANGUAGE plpgsql AS $$
DECLARE
  level levels := before;
  is_seen boolean := before.windows <> '{}';
  old integer;
  is_new boolean;
  empty_until bigint;
  calls record;
BEGIN
  level := keep_counted(level, sized, instant);
  level.windows := sized.windows;
  level.paces := sized.paces;
  level.tats := array_fill(0::bigint, ARRAY[cardinality(sized.windows)]);
  level.turns := array_fill(-1::bigint, ARRAY[cardinality(sized.windows)]);
  FOR place IN 1 .. cardinality(sized.windows) LOOP
    old := array_position(before.windows, sized.windows[place]);
    is_new := old IS NULL OR before.turns[old] <> -1;
    IF NOT is_new THEN
      level.tats[place] := before.tats[old];
    END IF;
    empty_until := sized.windows[place] + CASE WHEN is_seen OR sized.start = 'empty' THEN instant ELSE level.since END;
    IF is_new AND empty_until > instant AND (is_seen OR sized.start IS DISTINCT FROM 'full') THEN
      level := log_use(level, sized.windows[place], empty_until, sized.bursts[place]);
    END IF;
  END LOOP;
  FOR calls IN
    SELECT count, until FROM in_flight_calls
     WHERE of_limit = level.of_limit AND name = level.name AND since = level.since
       AND until <= instant - expiry_grace_us()
  LOOP
    level := log_call(level, sized, calls.until, calls.count);
  END LOOP;
  RETURN keep_counted(level, sized, instant);
END $$;

-- What calls have reserved and not used yet.
CREATE FUNCTION reserved_in(level levels, instant bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT coalesce(sum(count), 0)::bigint FROM in_flight_calls
   WHERE of_limit = level.of_limit AND name = level.name AND since = level.since AND until > instant - expiry_grace_us()
$$;

-- How much of one window is neither used nor reserved. Negative: calls have used more than their estimates.
CREATE FUNCTION room_in(level levels, sized sizing, place integer, reserved bigint) RETURNS bigint LANGUAGE sql STABLE AS $$
  SELECT sized.bursts[place] * level.percent / 100 - reserved - coalesce(sum(amount), 0)::bigint
    FROM unnest(level.used_windows, level.used_amounts) AS uses (window_us, amount)
   WHERE window_us = sized.windows[place]
$$;

-- When this much will have left the window, or when to ask again because calls may end before.
CREATE FUNCTION wait_for_room(level levels, window_us bigint, missing bigint, is_reserved boolean, instant bigint)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE uses record;
BEGIN
  FOR uses IN
    SELECT until, amount FROM unnest(level.used_windows, level.used_until, level.used_amounts)
                              AS each (of_window, until, amount)
     WHERE of_window = window_us ORDER BY until
  LOOP
    missing := missing - uses.amount;
    IF missing <= 0 THEN
      RETURN greatest(CASE WHEN is_reserved THEN least(uses.until - instant, 500000) ELSE uses.until - instant END, 1);
    END IF;
  END LOOP;
  RETURN 500000;
END $$;

-- Fit the buckets to the windows and the pace in force. Permits that were used stay used.
CREATE FUNCTION fit_buckets(level levels, sized sizing, instant bigint) RETURNS levels LANGUAGE plpgsql AS $$
DECLARE
  tats bigint[] := '{}';
  turns bigint[] := '{}';
  paces bigint[] := '{}';
  pace bigint;
  old integer;
  away_us bigint;
  most_us bigint;
BEGIN
  IF sized.is_metered THEN
    RETURN relog_level(level, sized, instant);
  END IF;
  FOR place IN 1 .. cardinality(sized.windows) LOOP
    pace := ceil_div(sized.paces[place] * 100, level.percent);
    old := array_position(level.windows, sized.windows[place]);
    IF level.turns[old] = -1 THEN
      old := NULL;  -- it was logged under an earlier definition
    END IF;
    IF old IS NULL THEN
      tats[place] := CASE WHEN level.windows <> '{}' OR sized.start = 'empty' THEN instant + ns_to_us(sized.bursts[place] * pace)
                          WHEN sized.start = 'full' THEN level.since
                          ELSE level.since + ns_to_us(sized.bursts[place] * pace) END;
    ELSIF level.paces[old] = pace THEN
      tats[place] := level.tats[old];
    ELSE
      away_us := least(ceil(greatest(level.tats[old] - instant, 0)::double precision
                            * (pace::double precision / level.paces[old]::double precision)), 9e18)::bigint;
      -- Use under a larger limit must not close a smaller one for longer than its window.
      most_us := greatest(sized.windows[place], ns_to_us(sized.bursts[place] * pace))
                 + greatest(level.blocked_until - instant, 0);
      tats[place] := instant + least(away_us, most_us);
    END IF;
    turns[place] := coalesce(level.turns[old], 0);
    paces[place] := pace;
  END LOOP;
  level.windows := sized.windows;
  level.tats := tats;
  level.turns := turns;
  level.paces := paces;
  level.used_windows := '{}';
  level.used_until := '{}';
  level.used_amounts := '{}';
  RETURN level;
END $$;

-- How long a provider must not throttle before the pace recovers by one step.
CREATE FUNCTION recovery_us(windows bigint[]) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT greatest(min(window_us), 10000000) FROM unnest(windows) AS window_us
$$;

-- A level as it stands now: fenced, recovered, with the buckets of the definition in force.
CREATE FUNCTION current_level(level levels, sized sizing, instant bigint, fence_at bigint) RETURNS levels
LANGUAGE plpgsql AS $$
DECLARE
  quiet bigint;
  spans bigint;
BEGIN
  IF level.since <> fence_at THEN
    level.since := fence_at;
    level.windows := '{}';
    level.turns := '{}';
    level.used_windows := '{}';
    level.used_until := '{}';
    level.used_amounts := '{}';
  END IF;
  IF level.percent < 100 THEN
    quiet := recovery_us(sized.windows);
    spans := (instant - level.slowed_at) / quiet;
    IF spans > 0 THEN
      level.percent := least(100, level.percent + 5 * spans);
      level.slowed_at := level.slowed_at + spans * quiet;
    END IF;
  END IF;
  -- The common case: nothing has changed.
  IF level.percent = 100 AND level.windows = sized.windows AND level.paces = sized.paces AND NOT sized.is_metered
     AND -1 <> ALL (level.turns) THEN
    RETURN level;
  END IF;
  RETURN fit_buckets(level, sized, instant);
END $$;

-- Store a level, and delete calls that have expired or were started before the fence.
CREATE FUNCTION write_level(level levels, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE levels
     SET since = level.since, blocked_until = level.blocked_until, percent = level.percent,
         generation = level.generation, slowed_at = level.slowed_at, has_calls = level.has_calls,
         windows = level.windows, tats = level.tats, turns = level.turns, paces = level.paces,
         used_windows = level.used_windows, used_until = level.used_until, used_amounts = level.used_amounts,
         breaker = level.breaker
   WHERE of_limit = level.of_limit AND name = level.name;
  IF level.has_calls THEN
    DELETE FROM in_flight_calls
     WHERE of_limit = level.of_limit AND name = level.name
       AND (until <= instant - expiry_grace_us() OR since <> level.since);
  END IF;
END $$;

-- Whether a level is indistinguishable from a new one, and has been for longer than the longest possible window: a rate
-- that is added later would otherwise start full although its window saw calls.
CREATE FUNCTION is_idle(level levels, sized sizing, instant bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  before CONSTANT bigint := instant - 31 * 86400000000;
  unseen levels := level;
BEGIN
  IF level.percent < 100 OR level.generation > 0 OR level.since > before OR level.blocked_until > before
     OR greatest((level.breaker).failed_at, (level.breaker).open_until, (level.breaker).probe_until) > before
     OR before < ANY (level.tats || level.turns) OR NOT sized.windows <@ level.windows THEN
    RETURN false;
  END IF;
  unseen.windows := '{}';
  unseen := fit_buckets(unseen, sized, instant);
  RETURN before >= ALL (unseen.tats)
         AND NOT EXISTS (SELECT 1 FROM in_flight_calls
                          WHERE of_limit = level.of_limit AND name = level.name AND until > before);
END $$;

-- A limit with a field has a level for every value ever seen. A transaction that adds a level deletes a few idle ones,
-- so that their number stays bounded.
--
-- The settings make the plan an index scan that ends after four levels. A session that planned it while the table was small
-- would otherwise read and sort a third of all levels for every new one.
CREATE FUNCTION delete_idle_levels(newcomer text, instant bigint) RETURNS void LANGUAGE plpgsql
SET enable_bitmapscan = off SET enable_sort = off AS $$
DECLARE
  level levels;
  sized sizing;
BEGIN
  -- Levels in use are locked and therefore skipped.
  FOR level IN
    SELECT * FROM levels WHERE hashtext(name) > hashtext(newcomer) ORDER BY hashtext(name) LIMIT 4
       FOR UPDATE SKIP LOCKED
  LOOP
    sized := load_sizing(level.of_limit);
    -- A level without a fence was created by a call that was refused.
    IF sized.windows IS NULL OR level.since = -1 OR is_idle(level, sized, instant) THEN
      DELETE FROM in_flight_calls WHERE of_limit = level.of_limit AND name = level.name;
      DELETE FROM levels WHERE of_limit = level.of_limit AND name = level.name;
    END IF;
  END LOOP;
END $$;
