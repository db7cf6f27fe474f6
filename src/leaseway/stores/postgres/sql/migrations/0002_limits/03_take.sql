-- All asks or none, in one transaction and one round trip.

-- How many of these asks could be granted together, if nothing had been used.
CREATE FUNCTION most_at_once(sized sizing, cost bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE most bigint := coalesce(sized.concurrency, 1000000000);
BEGIN
  FOR place IN 1 .. cardinality(sized.bursts) LOOP
    most := least(most, sized.bursts[place] / cost);
  END LOOP;
  RETURN most;
END $$;

-- What stands longest against an ask, and how many of it would pass now. `reason` is the place of a window, 0 for a
-- provider that asked us to wait, -1 for seats.
CREATE FUNCTION hindrance(level levels, sized sizing, cost bigint, least_count bigint, instant bigint,
                          OUT wait_us bigint, OUT reason integer, OUT units bigint) LANGUAGE plpgsql AS $$
DECLARE
  room_us bigint;
  needed_us bigint;
  free bigint;
  first_until bigint;
BEGIN
  wait_us := level.blocked_until - instant;
  reason := 0;
  units := 1000000000;
  FOR place IN 1 .. cardinality(level.windows) LOOP
    room_us := us(sized.bursts[place] * level.paces[place]) - greatest(level.tats[place] - instant, 0);
    -- Below zero nothing passes, and there is a wait.
    units := least(units, greatest(room_us, 0) * 1000 / (cost * level.paces[place]));
    needed_us := us(least_count * cost * level.paces[place]) - room_us;
    IF needed_us > wait_us THEN
      wait_us := needed_us;
      reason := place;
    END IF;
  END LOOP;
  IF sized.concurrency IS NOT NULL THEN
    SELECT sized.concurrency - coalesce(sum(count), 0), min(until) INTO free, first_until FROM seats
     WHERE of_limit = level.of_limit AND name = level.name AND until > instant AND since = level.since;
    units := least(units, free);
    -- After a fence nobody sits down, until those who sat before have said so again.
    needed_us := level.since + 10000000 - instant;
    IF free < least_count THEN
      -- Nobody knows when a seat is left, but for the time at which its holder is thought dead.
      needed_us := greatest(needed_us, greatest(least(first_until - instant, 500000), 1));
    END IF;
    IF needed_us > wait_us THEN
      wait_us := needed_us;
      reason := -1;
    END IF;
  END IF;
END $$;

CREATE TYPE verdict AS (
  answer text,
  granted bigint,
  granted_at bigint,
  since bigint,
  lease_us bigint,
  generations integer[],
  -- Of a refusal: which ask it is about; how long to wait and which window is used up (0 blocked, -1 seats), or how
  -- many would ever be granted.
  place integer,
  wait_us bigint,
  window_us bigint,
  most bigint
);

-- Whoever is refused for want of tokens gets a turn of his own, so that not all come back at once.
CREATE FUNCTION turn_away(level levels, needs_us bigint, waits_us bigint, bucket integer,
                          instant bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE turn bigint := instant + waits_us;
BEGIN
  -- Beyond a whole window, those who were given turns have left long ago.
  IF level.turns[bucket] > turn AND level.turns[bucket] <= turn + level.windows[bucket] THEN
    turn := level.turns[bucket];
  END IF;
  level.turns[bucket] := turn + needs_us;
  PERFORM write_level(level, instant);
  RETURN turn - instant;
END $$;

CREATE FUNCTION spend(level levels, sized sizing, units bigint, seated bigint, new_holder text,
                      seat_us bigint, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  FOR place IN 1 .. cardinality(level.windows) LOOP
    level.tats[place] := greatest(level.tats[place], instant) + us(units * level.paces[place]);
  END LOOP;
  level.seated := level.seated OR sized.concurrency IS NOT NULL;
  PERFORM write_level(level, instant);
  IF sized.concurrency IS NOT NULL THEN
    INSERT INTO seats AS known (of_limit, name, holder, count, until, since)
    VALUES (level.of_limit, level.name, new_holder, seated, instant + seat_us, level.since)
    ON CONFLICT (of_limit, name, holder) DO UPDATE SET count = known.count + excluded.count, until = excluded.until;
  END IF;
END $$;

CREATE FUNCTION take(names text[], limit_names text[], costs bigint[], least_count bigint, most_count bigint,
                     new_holder text, seat_us bigint, at bigint DEFAULT NULL)
RETURNS verdict LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  said verdict;
  held levels[];
  level levels;
  sizes sizing[];
  sized sizing;
  against record;
  reason integer;
  newcomer text;
BEGIN
  PERFORM refuse_replica();
  held := locked_levels(names, limit_names);
  -- The rest is read after the wait for the locks, which may have been long: the fence, the clock, what is in force.
  said.since := fence_since(at);
  said.granted_at := coalesce(at, now_us());
  sizes := sizings_of(limit_names);

  said.granted := most_count;
  said.wait_us := 0;
  FOR place IN 1 .. cardinality(names) LOOP
    sized := sizes[place];
    level := held[place];
    said.most := most_at_once(sized, costs[place]);
    IF least_count > said.most THEN
      said.answer := 'never';
      said.place := place;
      RETURN said;
    END IF;
    newcomer := CASE WHEN level.since = -1 THEN level.name ELSE newcomer END;
    level := current_level(level, sized, said.granted_at, said.since);
    held[place] := level;
    against := hindrance(level, sized, costs[place], least_count, said.granted_at);
    said.granted := least(said.granted, against.units);
    said.lease_us := least(said.lease_us, sized.lease_us);
    said.generations[place] := level.generation;
    IF against.wait_us > said.wait_us THEN
      said.wait_us := against.wait_us;
      said.place := place;
      reason := against.reason;
    END IF;
  END LOOP;

  IF said.wait_us > 0 THEN
    said.answer := 'wait';
    said.window_us := reason;
    IF reason > 0 THEN
      level := held[said.place];
      said.window_us := level.windows[reason];
      said.wait_us := turn_away(level, us(least_count * costs[said.place] * level.paces[reason]), said.wait_us,
                                reason, said.granted_at);
    END IF;
    RETURN said;
  END IF;

  said.answer := 'granted';
  FOR place IN 1 .. cardinality(names) LOOP
    PERFORM spend(held[place], sizes[place], said.granted * costs[place], said.granted, new_holder,
                  seat_us, said.granted_at);
  END LOOP;
  -- Last, because it locks in an order of its own: from here on we wait for nobody.
  IF newcomer IS NOT NULL THEN
    PERFORM forget_idle(newcomer, said.granted_at);
  END IF;
  RETURN said;
END $$;
