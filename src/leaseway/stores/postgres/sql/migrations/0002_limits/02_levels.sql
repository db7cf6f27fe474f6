-- The level as it stands: locked, fenced, recovered, at the pace of today.

-- Divided, and rounded up.
CREATE FUNCTION up(number bigint, by bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN number > 0 THEN (number - 1) / by + 1 ELSE number / by END;

-- Nanoseconds as microseconds.
CREATE FUNCTION us(ns bigint) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN CASE WHEN ns > 0 THEN (ns - 1) / 1000 + 1 ELSE ns / 1000 END;

-- The names in the one order in which everybody locks.
CREATE FUNCTION in_order(names text[]) RETURNS SETOF integer LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT place::integer FROM unnest(names) WITH ORDINALITY AS asked (name, place) ORDER BY name COLLATE "C"
$$;

-- A replica has none of this: after a failover it must not look like a missing schema.
CREATE FUNCTION refuse_replica() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'limits are kept by the primary only' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
END $$;

-- What is in force now, all NULL if nothing is: a definition may have come or gone while we waited for a lock.
CREATE FUNCTION sizing_of(limit_name text) RETURNS sizing LANGUAGE plpgsql AS $$
DECLARE sized sizing;
BEGIN
  SELECT windows, bursts, paces, concurrency, lease_us INTO sized FROM limits WHERE name = limit_name;
  RETURN sized;
END $$;

CREATE FUNCTION refuse_unknown(limit_name text, sized sizing) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF sized.windows IS NULL THEN
    RAISE EXCEPTION '%', limit_name USING ERRCODE = 'LW003';
  END IF;
END $$;

CREATE FUNCTION sizings_of(limit_names text[]) RETURNS sizing[] LANGUAGE plpgsql AS $$
DECLARE
  sized sizing;
  sizes sizing[];
BEGIN
  FOR place IN 1 .. cardinality(limit_names) LOOP
    sized := sizing_of(limit_names[place]);
    PERFORM refuse_unknown(limit_names[place], sized);
    sizes[place] := sized;
  END LOOP;
  RETURN sizes;
END $$;

-- The level of this name, locked; a new one if there is none.
CREATE FUNCTION locked_level(wanted text, limit_name text) RETURNS levels LANGUAGE plpgsql AS $$
DECLARE level levels;
BEGIN
  -- A row that was there can be gone again, because it was forgotten meanwhile; hardly ever twice.
  FOR attempt IN 1 .. 100 LOOP
    SELECT * INTO level FROM levels WHERE of_limit = limit_name AND name = wanted FOR UPDATE;
    IF FOUND THEN
      RETURN level;
    END IF;
    INSERT INTO levels (name, of_limit) VALUES (wanted, limit_name) ON CONFLICT DO NOTHING;
  END LOOP;
  RAISE EXCEPTION 'the level of % does not stay', wanted USING ERRCODE = 'lock_not_available';
END $$;

CREATE FUNCTION locked_levels(names text[], limit_names text[]) RETURNS levels[] LANGUAGE plpgsql AS $$
DECLARE
  place integer;
  held levels[];
BEGIN
  FOR place IN SELECT in_order(names) LOOP
    held[place] := locked_level(names[place], limit_names[place]);
  END LOOP;
  RETURN held;
END $$;

-- Since when we know what is used. No row: the server crashed, was promoted or is new, and this is the moment.
-- Asked after the locks, so that nobody decides by a fence that was moved while he waited.
CREATE FUNCTION fence_since(at bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE known_since bigint;
BEGIN
  SELECT since INTO known_since FROM fence WHERE made_in = tableoid;
  IF NOT FOUND THEN
    INSERT INTO fence (made_in, since) VALUES ('fence'::regclass, coalesce(at, now_us())) ON CONFLICT DO NOTHING;
    SELECT since INTO known_since FROM fence WHERE made_in = tableoid;
  END IF;
  RETURN known_since;
END $$;

-- A bucket for each window, at its present pace: tokens that were used stay used.
CREATE FUNCTION paced(level levels, sized sizing, instant bigint) RETURNS levels LANGUAGE plpgsql AS $$
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
    pace := up(sized.paces[place] * 100, level.percent);
    old := array_position(level.windows, sized.windows[place]);
    IF old IS NULL THEN
      tats[place] := CASE WHEN level.windows = '{}' THEN level.since ELSE instant END + us(sized.bursts[place] * pace);
    ELSIF level.paces[old] = pace THEN
      tats[place] := level.tats[old];
    ELSE
      away_us := least(ceil(greatest(level.tats[old] - instant, 0)::double precision
                            * (pace::double precision / level.paces[old]::double precision)), 9e18)::bigint;
      -- What was used of a larger limit has left the window by then. It must not close a smaller one for months.
      most_us := greatest(sized.windows[place], us(sized.bursts[place] * pace)) + greatest(level.blocked_until - instant, 0);
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

-- How long it must be quiet until some of the pace comes back.
CREATE FUNCTION quiet_us(windows bigint[]) RETURNS bigint LANGUAGE sql IMMUTABLE PARALLEL SAFE AS $$
  SELECT greatest(min(window_us), 10000000) FROM unnest(windows) AS window_us
$$;

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
    quiet := quiet_us(sized.windows);
    spans := (instant - level.slowed_at) / quiet;
    IF spans > 0 THEN
      level.percent := least(100, level.percent + 5 * spans);
      level.slowed_at := level.slowed_at + spans * quiet;
    END IF;
  END IF;
  -- Nearly always everything is as it was.
  IF level.percent = 100 AND level.windows = sized.windows AND level.paces = sized.paces THEN
    RETURN level;
  END IF;
  RETURN paced(level, sized, instant);
END $$;

-- Keep it, without those who left their seats, or took them before the fence.
CREATE FUNCTION write_level(level levels, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  UPDATE levels
     SET since = level.since, blocked_until = level.blocked_until, percent = level.percent,
         generation = level.generation, slowed_at = level.slowed_at, seated = level.seated,
         windows = level.windows, tats = level.tats, turns = level.turns, paces = level.paces
   WHERE of_limit = level.of_limit AND name = level.name;
  IF level.seated THEN
    DELETE FROM seats
     WHERE of_limit = level.of_limit AND name = level.name AND (until <= instant OR since <> level.since);
  END IF;
END $$;
