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
    INSERT INTO levels (name, of_limit) VALUES (wanted, limit_name) ON CONFLICT DO NOTHING;
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
  FOR place IN 1 .. cardinality(sized.windows) LOOP
    pace := ceil_div(sized.paces[place] * 100, level.percent);
    old := array_position(level.windows, sized.windows[place]);
    IF old IS NULL THEN
      tats[place] := CASE WHEN level.windows = '{}' THEN level.since ELSE instant END + ns_to_us(sized.bursts[place] * pace);
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
  IF level.percent = 100 AND level.windows = sized.windows AND level.paces = sized.paces THEN
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
         windows = level.windows, tats = level.tats, turns = level.turns, paces = level.paces
   WHERE of_limit = level.of_limit AND name = level.name;
  IF level.has_calls THEN
    DELETE FROM in_flight_calls
     WHERE of_limit = level.of_limit AND name = level.name AND (until <= instant OR since <> level.since);
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
CREATE FUNCTION delete_idle_levels(newcomer text, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
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
