-- Permits of limits: taking and returning them, calls in flight, notices of providers. All workers share them.
--
-- Every function locks the levels of its limits in one order, and reads the clock afterwards.

-- How many permits of this cost could be granted at once if nothing had been used.
CREATE FUNCTION grantable_max(sized sizing, cost bigint) RETURNS bigint LANGUAGE plpgsql IMMUTABLE AS $$
DECLARE most bigint := coalesce(sized.concurrency, 1000000000);
BEGIN
  FOR place IN 1 .. cardinality(sized.bursts) LOOP
    most := least(most, sized.bursts[place] / cost);
  END LOOP;
  RETURN most;
END $$;

-- Whether the circuit breaker lets one call through, the probe.
CREATE FUNCTION is_half_open(level levels, sized sizing, instant bigint) RETURNS boolean LANGUAGE sql IMMUTABLE
RETURN sized.breaker IS NOT NULL AND (level.breaker).open_until > 0
       AND greatest((level.breaker).open_until, (level.breaker).probe_until) <= instant;

-- What stands in the way of every call: a wait that the provider asked for (reason 0), or the circuit breaker (-3: it is
-- open, -4: a probe is under way). A half-open breaker lets a caller take no more than it needs.
CREATE FUNCTION find_closure(level levels, sized sizing, least_count bigint, instant bigint,
                             OUT wait_us bigint, OUT reason integer, OUT units bigint) LANGUAGE plpgsql AS $$
DECLARE breaker_us bigint;
BEGIN
  wait_us := level.blocked_until - instant;
  reason := 0;
  units := 1000000000;
  IF sized.breaker IS NULL OR (level.breaker).open_until = 0 THEN
    RETURN;
  END IF;
  IF is_half_open(level, sized, instant) THEN
    units := least_count;
    RETURN;
  END IF;
  breaker_us := (level.breaker).open_until - instant;
  IF breaker_us <= 0 THEN
    breaker_us := least((level.breaker).probe_until - instant, 1000000);
  END IF;
  IF breaker_us > greatest(wait_us, 0) THEN
    wait_us := breaker_us;
    reason := CASE WHEN (level.breaker).open_until > instant THEN -3 ELSE -4 END;
  END IF;
END $$;

-- As find_obstacle, for a limit that is logged. After a fence, workers report first what they have reserved.
CREATE FUNCTION find_log_obstacle(level levels, sized sizing, cost bigint, least_count bigint, instant bigint,
                                  OUT wait_us bigint, OUT reason integer, OUT units bigint) LANGUAGE plpgsql AS $$
DECLARE
  reserved bigint := reserved_in(level, instant);
  room bigint;
  needed_us bigint;
BEGIN
  SELECT * INTO wait_us, reason, units FROM find_closure(level, sized, least_count, instant);
  FOR place IN 1 .. cardinality(level.windows) LOOP
    room := room_in(level, sized, place, reserved);
    units := least(units, greatest(room, 0) / cost);
    needed_us := level.since + 10000000 - instant;
    IF room < least_count * cost THEN
      needed_us := greatest(needed_us, wait_for_room(level, sized.windows[place], least_count * cost - room, reserved > 0,
                                                     instant));
    END IF;
    IF needed_us > wait_us THEN
      wait_us := needed_us;
      reason := place;
    END IF;
  END LOOP;
END $$;

-- The longest obstacle to granting permits, and how many could be granted now. `reason` is the position of the used-up
-- window, 0 if the provider asked to wait, -1 for too many calls in flight, -2 for a paused limit, or as in find_closure.
CREATE FUNCTION find_obstacle(level levels, sized sizing, cost bigint, least_count bigint, instant bigint,
                          OUT wait_us bigint, OUT reason integer, OUT units bigint) LANGUAGE plpgsql AS $$
DECLARE
  room_us bigint;
  needed_us bigint;
  free bigint;
  first_until bigint;
BEGIN
  IF sized.is_paused THEN
    wait_us := 5000000;
    reason := -2;
    units := 0;
    RETURN;
  END IF;
  IF sized.is_metered THEN
    SELECT * INTO wait_us, reason, units FROM find_log_obstacle(level, sized, cost, least_count, instant);
    RETURN;
  END IF;
  IF sized.breaker IS NULL THEN
    wait_us := level.blocked_until - instant;
    reason := 0;
    units := 1000000000;
  ELSE
    SELECT * INTO wait_us, reason, units FROM find_closure(level, sized, least_count, instant);
  END IF;
  FOR place IN 1 .. cardinality(level.windows) LOOP
    room_us := ns_to_us(sized.bursts[place] * level.paces[place]) - greatest(level.tats[place] - instant, 0);
    -- A negative room means that nothing can be granted and the client has to wait.
    units := least(units, greatest(room_us, 0) * 1000 / (cost * level.paces[place]));
    needed_us := ns_to_us(least_count * cost * level.paces[place]) - room_us;
    IF needed_us > wait_us THEN
      wait_us := needed_us;
      reason := place;
    END IF;
  END LOOP;
  IF sized.concurrency IS NOT NULL THEN
    SELECT sized.concurrency - coalesce(sum(count), 0), min(until) + expiry_grace_us() INTO free, first_until
      FROM in_flight_calls
     WHERE of_limit = level.of_limit AND name = level.name AND until > instant - expiry_grace_us() AND since = level.since;
    units := least(units, free);
    -- After a fence no call may start until workers have had time to report the calls that they have in flight.
    needed_us := level.since + 10000000 - instant;
    IF free < least_count THEN
      -- The end of a call cannot be predicted, except that it expires when its holder stops renewing it.
      needed_us := greatest(needed_us, greatest(least(first_until - instant, 500000), 1));
    END IF;
    IF needed_us > wait_us THEN
      wait_us := needed_us;
      reason := -1;
    END IF;
  END IF;
END $$;

-- The answer of take_permits.
CREATE TYPE permit_answer AS (
  outcome text, -- 'granted', 'wait' or 'never'
  granted bigint,
  granted_at bigint,
  since bigint,
  lease_us bigint,
  generations integer[],
  -- Of their circuit breakers: the numbers, and whether answers are to be reported, too. NULL if there are none.
  circuits integer[],
  watched boolean[],
  -- Of a refusal: the position of the limit; how long to wait and the window that is used up (or 0 and less as in
  -- find_obstacle); or how many permits can be granted at most.
  place integer,
  wait_us bigint,
  window_us bigint,
  most bigint
);

-- Give a refused client a time of its own to come back, so that waiting clients do not return all at once.
CREATE FUNCTION assign_turn(level levels, needs_us bigint, waits_us bigint, bucket integer,
                          instant bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE turn bigint := instant + waits_us;
BEGIN
  -- Turns that lie more than a window ahead belong to clients that have left.
  IF level.turns[bucket] > turn AND level.turns[bucket] <= turn + level.windows[bucket] THEN
    turn := level.turns[bucket];
  END IF;
  level.turns[bucket] := turn + needs_us;
  PERFORM write_level(level, instant);
  RETURN turn - instant;
END $$;

CREATE FUNCTION consume_permits(level levels, sized sizing, units bigint, calls bigint, new_holder text,
                      call_us bigint, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  FOR place IN 1 .. CASE WHEN sized.is_metered THEN 0 ELSE cardinality(level.windows) END LOOP
    level.tats[place] := greatest(level.tats[place], instant) + ns_to_us(units * level.paces[place]);
  END LOOP;
  IF sized.breaker IS NOT NULL AND is_half_open(level, sized, instant) THEN
    level.breaker.probe_until := instant + greatest(call_us, 10000000);
  END IF;
  level.has_calls := level.has_calls OR sized.concurrency IS NOT NULL OR sized.is_metered;
  PERFORM write_level(level, instant);
  IF sized.concurrency IS NOT NULL OR sized.is_metered THEN
    INSERT INTO in_flight_calls AS known (of_limit, name, holder, count, until, since)
    VALUES (level.of_limit, level.name, new_holder, CASE WHEN sized.is_metered THEN units ELSE calls END,
            instant + call_us, level.since)
    ON CONFLICT (of_limit, name, holder) DO UPDATE
      SET count = known.count + excluded.count,
          -- A reservation lasts until the last call of its holder must have ended.
          until = CASE WHEN sized.is_metered THEN greatest(known.until, excluded.until) ELSE excluded.until END;
  END IF;
END $$;

-- Take permits of all these limits or of none, in one transaction and one round trip.
CREATE FUNCTION take_permits(names text[], limit_names text[], costs bigint[], least_count bigint, most_count bigint,
                     new_holder text, call_us bigint, at bigint DEFAULT NULL)
RETURNS permit_answer LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  answer permit_answer;
  held levels[];
  level levels;
  sizes sizing[];
  sized sizing;
  obstacle record;
  reason integer;
  newcomer text;
  has_breaker boolean := false;
BEGIN
  PERFORM refuse_replica();
  held := lock_levels(names, limit_names);
  -- The fence, the clock and the definitions are read after the locks are held, because waiting for them may take long.
  answer.since := fence_since(at);
  answer.granted_at := coalesce(at, now_us());
  sizes := load_sizings(limit_names);

  answer.granted := most_count;
  answer.wait_us := 0;
  FOR place IN 1 .. cardinality(names) LOOP
    sized := sizes[place];
    level := held[place];
    answer.most := grantable_max(sized, costs[place]);
    IF least_count > answer.most THEN
      answer.outcome := 'never';
      answer.place := place;
      RETURN answer;
    END IF;
    newcomer := CASE WHEN level.since = -1 THEN level.name ELSE newcomer END;
    level := current_level(level, sized, answer.granted_at, answer.since);
    held[place] := level;
    obstacle := find_obstacle(level, sized, costs[place], least_count, answer.granted_at);
    answer.granted := least(answer.granted, obstacle.units);
    answer.lease_us := least(answer.lease_us, sized.lease_us);
    answer.generations[place] := level.generation;
    has_breaker := has_breaker OR sized.breaker IS NOT NULL;
    IF obstacle.wait_us > answer.wait_us THEN
      answer.wait_us := obstacle.wait_us;
      answer.place := place;
      reason := obstacle.reason;
    END IF;
  END LOOP;

  IF answer.wait_us > 0 THEN
    answer.outcome := 'wait';
    answer.window_us := reason;
    IF reason > 0 THEN
      level := held[answer.place];
      answer.window_us := level.windows[reason];
      sized := sizes[answer.place];
      IF NOT sized.is_metered THEN
        answer.wait_us := assign_turn(level, ns_to_us(least_count * costs[answer.place] * level.paces[reason]),
                                      answer.wait_us, reason, answer.granted_at);
      END IF;
    END IF;
    RETURN answer;
  END IF;

  answer.outcome := 'granted';
  IF has_breaker THEN
    FOR place IN 1 .. cardinality(names) LOOP
      sized := sizes[place];
      level := held[place];
      answer.circuits[place] := CASE WHEN sized.breaker IS NULL THEN -1 ELSE (level.breaker).number END;
      answer.watched[place] := sized.breaker IS NOT NULL AND (level.breaker).failures > 0;
    END LOOP;
  END IF;
  FOR place IN 1 .. cardinality(names) LOOP
    PERFORM consume_permits(held[place], sizes[place], answer.granted * costs[place], answer.granted, new_holder,
                            call_us, answer.granted_at);
  END LOOP;
  -- Last, because it locks in another order: nothing after it waits for a lock.
  IF newcomer IS NOT NULL THEN
    PERFORM delete_idle_levels(newcomer, answer.granted_at);
  END IF;
  RETURN answer;
END $$;

-- The positions of the limits that are still defined, in lock order. A limit that was forgotten meanwhile needs no
-- update.
CREATE FUNCTION defined_limits(names text[], limit_names text[]) RETURNS SETOF integer LANGUAGE sql AS $$
  SELECT place::integer FROM unnest(names, limit_names) WITH ORDINALITY AS asked (name, limit_name, place)
   WHERE EXISTS (SELECT 1 FROM limits WHERE limits.name = asked.limit_name)
   ORDER BY asked.name COLLATE "C"
$$;

-- The buckets after permits were returned. A returned permit is worth less the older it is: without it, the bucket
-- might have been full and not refilled at all. After a refusal by the provider nothing is credited, because the limit
-- reopens with one permit.
CREATE FUNCTION credit_buckets(level levels, sized sizing, units bigint, age_us bigint) RETURNS bigint[]
LANGUAGE plpgsql AS $$
DECLARE worth_us numeric;
BEGIN
  FOR place IN 1 .. cardinality(level.windows) LOOP
    CONTINUE WHEN level.windows[place] <> ALL (sized.windows);
    -- A new definition may have made the pace much slower; the bound prevents an overflow and exceeds every bucket.
    worth_us := least(div(units::numeric * level.paces[place], 1000), 9007199254740992) - age_us;
    level.tats[place] := level.tats[place] - greatest(worth_us, 0)::bigint;
  END LOOP;
  RETURN level.tats;
END $$;

CREATE FUNCTION return_permits(names text[], limit_names text[], costs bigint[], unused bigint, taken_at bigint,
                          taken_since bigint, taken_generations integer[], at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  place integer;
  level levels;
  held levels[];
  sized sizing;
  age_us bigint;
BEGIN
  PERFORM refuse_replica();
  FOR place IN SELECT defined_limits(names, limit_names) LOOP
    SELECT * INTO level FROM levels WHERE of_limit = limit_names[place] AND name = names[place] FOR UPDATE;
    IF FOUND AND level.since = taken_since AND level.generation = taken_generations[place] THEN
      held[place] := level;
    END IF;
  END LOOP;
  age_us := coalesce(at, now_us()) - taken_at;
  FOR place IN 1 .. cardinality(names) LOOP
    level := held[place];
    sized := load_sizing(limit_names[place]);
    -- The end of a call returns what it has reserved of a limit that is logged.
    CONTINUE WHEN age_us < 0 OR level.name IS NULL OR sized.windows IS NULL OR sized.is_metered;
    UPDATE levels SET tats = credit_buckets(level, sized, unused * costs[place], age_us)
     WHERE of_limit = level.of_limit AND name = level.name;
  END LOOP;
END $$;

CREATE FUNCTION discount_calls(level_name text, limit_name text, old_holder text, ended bigint) RETURNS void
LANGUAGE plpgsql AS $$
BEGIN
  DELETE FROM in_flight_calls
   WHERE of_limit = limit_name AND name = level_name AND holder = old_holder AND count <= ended;
  UPDATE in_flight_calls SET count = count - ended
   WHERE of_limit = limit_name AND name = level_name AND holder = old_holder;
END $$;

-- Record that calls of this holder have ended. `used`: what they used of limits that are logged; empty: what they had
-- reserved.
CREATE FUNCTION end_calls(names text[], limit_names text[], costs bigint[], old_holder text, ended bigint,
                          used bigint[], at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  place integer;
  level levels;
  held levels[];
  sized sizing;
  fence_at bigint;
  instant bigint;
  is_any_metered boolean := false;
BEGIN
  PERFORM refuse_replica();
  FOR place IN SELECT defined_limits(names, limit_names) LOOP
    sized := load_sizing(limit_names[place]);
    IF sized.is_metered THEN
      held[place] := lock_level(names[place], limit_names[place]);
      is_any_metered := true;
      CONTINUE;
    END IF;
    PERFORM FROM levels WHERE of_limit = limit_names[place] AND name = names[place] FOR UPDATE;
    PERFORM discount_calls(names[place], limit_names[place], old_holder, ended);
  END LOOP;
  IF NOT is_any_metered THEN
    RETURN;
  END IF;
  fence_at := fence_since(at);
  instant := coalesce(at, now_us());
  FOR place IN 1 .. cardinality(names) LOOP
    level := held[place];
    sized := load_sizing(limit_names[place]);
    CONTINUE WHEN level.name IS NULL OR sized.windows IS NULL OR NOT sized.is_metered;
    level := current_level(level, sized, instant, fence_at);
    level := log_call(level, sized, instant, coalesce(used[place], ended * costs[place]));
    level.has_calls := true;
    PERFORM write_level(level, instant);
    PERFORM discount_calls(names[place], limit_names[place], old_holder, ended * costs[place]);
  END LOOP;
END $$;

-- Record the calls that this holder has in flight. This replaces whatever was known of them.
CREATE FUNCTION renew_calls(names text[], limit_names text[], costs bigint[], new_holder text, in_flight bigint, call_us bigint,
                     at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  place integer;
  level levels;
  held levels[];
  sized sizing;
  fence_at bigint;
  instant bigint;
BEGIN
  PERFORM refuse_replica();
  FOR place IN SELECT defined_limits(names, limit_names) LOOP
    held[place] := lock_level(names[place], limit_names[place]);
  END LOOP;
  fence_at := fence_since(at);
  instant := coalesce(at, now_us());
  FOR place IN 1 .. cardinality(names) LOOP
    level := held[place];
    sized := load_sizing(limit_names[place]);
    CONTINUE WHEN level.name IS NULL OR sized.windows IS NULL;
    level := current_level(level, sized, instant, fence_at);
    level.has_calls := true;
    PERFORM write_level(level, instant);
    INSERT INTO in_flight_calls AS known (of_limit, name, holder, count, until, since)
    VALUES (level.of_limit, level.name, new_holder,
            CASE WHEN sized.is_metered THEN in_flight * costs[place] ELSE in_flight END, instant + call_us, fence_at)
    ON CONFLICT (of_limit, name, holder) DO UPDATE
      SET count = excluded.count,
          until = CASE WHEN sized.is_metered THEN greatest(known.until, excluded.until) ELSE excluded.until END;
  END LOOP;
END $$;

-- Apply a refusal by the provider: close the limit until the given time, slow it down once per refusal, and reopen it
-- with one permit.
CREATE FUNCTION throttle(level levels, sized sizing, seen_generation integer, retry_after_us bigint, instant bigint)
RETURNS levels LANGUAGE plpgsql AS $$
DECLARE shortest bigint := (SELECT coalesce(min(window_us), 0) FROM unnest(sized.windows) AS window_us);
BEGIN
  level.blocked_until := greatest(level.blocked_until,
                                  instant + coalesce(retry_after_us, greatest(shortest / 10, 1000000)));
  level.slowed_at := level.blocked_until;
  IF seen_generation = level.generation THEN
    level.percent := greatest(level.percent * 70 / 100, 10);
    level.generation := level.generation + 1;
  END IF;
  level := fit_buckets(level, sized, instant);
  -- A limit that is logged reopens with what is left of its window.
  FOR place IN 1 .. CASE WHEN sized.is_metered THEN 0 ELSE cardinality(level.windows) END LOOP
    level.tats[place] := greatest(level.tats[place], level.blocked_until + ns_to_us(sized.bursts[place] * level.paces[place])
                                                     - ns_to_us(level.paces[place]));
  END LOOP;
  RETURN level;
END $$;

-- Apply a remaining quota that the provider reported. A quota smaller than expected is applied, a larger one is not. A
-- reset time refers to the shortest window that lasts as long.
CREATE FUNCTION apply_quota(level levels, sized sizing, remaining bigint, reset_us bigint, instant bigint) RETURNS levels
LANGUAGE plpgsql AS $$
DECLARE
  reported bigint := (SELECT coalesce(min(window_us) FILTER (WHERE window_us >= reset_us), max(window_us))
                    FROM unnest(sized.windows) AS window_us);
  place integer := array_position(sized.windows, reported);
  pace bigint := level.paces[place];
  room bigint;
BEGIN
  IF sized.is_metered AND remaining IS NOT NULL AND place IS NOT NULL THEN
    -- Another client of the account has used what this fleet cannot explain. It counts until the window resets.
    room := room_in(level, sized, place, reserved_in(level, instant));
    IF room > remaining THEN
      level := log_use(level, reported, instant + least(reset_us, reported), room - remaining);
    END IF;
    RETURN level;
  END IF;
  IF remaining IS NOT NULL AND place IS NOT NULL THEN
    level.tats[place] := greatest(level.tats[place], instant + ns_to_us(sized.bursts[place] * pace)
                                                     - ns_to_us(least(remaining, sized.bursts[place]) * pace));
  END IF;
  RETURN level;
END $$;

-- How a call has ended. One that was granted under another number of the breaker says nothing any more.
CREATE FUNCTION apply_call(level levels, threshold integer, circuit integer, has_failed boolean, is_answered boolean,
                           instant bigint) RETURNS levels LANGUAGE plpgsql AS $$
DECLARE
  breaker breaker_state := level.breaker;
  is_open boolean := breaker.open_until > 0;
BEGIN
  IF threshold IS NULL OR circuit <> breaker.number THEN
    RETURN level;
  END IF;
  IF is_answered THEN
    breaker := ROW(0, 0, 0, 0, 0, breaker.number + CASE WHEN is_open THEN 1 ELSE 0 END);
  ELSIF has_failed THEN
    breaker.failures := CASE WHEN is_open OR (breaker.failures > 0 AND instant - breaker.failed_at <= 600000000)
                             THEN breaker.failures + 1 ELSE 1 END;
    breaker.failed_at := instant;
    IF is_open OR breaker.failures >= threshold THEN
      breaker.open_until := instant + least(10000000::bigint << least(breaker.trips, 5), 300000000);
      breaker.trips := breaker.trips + 1;
      breaker.probe_until := 0;
      breaker.number := breaker.number + 1;
    END IF;
  END IF;
  level.breaker := breaker;
  RETURN level;
END $$;

-- Apply what a response of the provider says, for all workers.
CREATE FUNCTION apply_notice(level_name text, limit_name text, seen_generation integer, is_throttled boolean,
                     retry_after_us bigint, remaining bigint, reset_us bigint, circuit integer, has_failed boolean,
                     is_answered boolean, at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  level levels;
  sized sizing;
  fence_at bigint;
  instant bigint;
BEGIN
  PERFORM refuse_replica();
  sized := load_sizing(limit_name);
  IF sized.windows IS NULL THEN
    RAISE EXCEPTION '%', limit_name USING ERRCODE = 'LW003';
  END IF;
  level := lock_level(level_name, limit_name);
  fence_at := fence_since(at);
  instant := coalesce(at, now_us());
  level := current_level(level, sized, instant, fence_at);
  level := apply_call(level, sized.breaker, circuit, has_failed, is_answered, instant);
  IF is_throttled THEN
    level := throttle(level, sized, seen_generation, retry_after_us, instant);
  ELSE
    level := apply_quota(level, sized, remaining, reset_us, instant);
  END IF;
  PERFORM write_level(level, instant);
END $$;

CREATE TYPE level_row AS (
  instant bigint,
  since bigint,
  blocked_until bigint,
  percent integer,
  generation integer,
  slowed_at bigint,
  -- The circuit breaker.
  failures integer,
  failed_at bigint,
  trips integer,
  open_until bigint,
  probe_until bigint,
  circuit integer,
  windows bigint[],
  tats bigint[],
  turns bigint[],
  paces bigint[],
  used_windows bigint[],
  used_until bigint[],
  used_amounts bigint[],
  holders text[],
  counts bigint[],
  untils bigint[]
);

-- Each level as it stands now, for display. It changes nothing; without a fence, everything counts as used up.
CREATE FUNCTION read_levels(names text[], limit_names text[], at bigint DEFAULT NULL) RETURNS SETOF level_row
LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off
AS $$
DECLARE
  instant bigint;
  fence_at bigint;
  level levels;
  sized sizing;
BEGIN
  PERFORM refuse_replica();
  instant := coalesce(at, now_us());
  fence_at := coalesce((SELECT since FROM limiter_fence WHERE made_in = tableoid), instant);
  FOR place IN 1 .. cardinality(names) LOOP
    sized := load_sizing(limit_names[place]);
    PERFORM refuse_unknown(limit_names[place], sized);
    SELECT * INTO level FROM levels WHERE of_limit = limit_names[place] AND name = names[place];
    IF NOT FOUND THEN
      level := (names[place], limit_names[place], -1, 0, 100, 0, 0, false, '{}', '{}', '{}', '{}', '{}', '{}', '{}',
                ROW(0, 0, 0, 0, 0, 0)::breaker_state);
    END IF;
    level := current_level(level, sized, instant, fence_at);
    RETURN QUERY
    SELECT instant, level.since, level.blocked_until, level.percent, level.generation, level.slowed_at,
           (level.breaker).failures, (level.breaker).failed_at, (level.breaker).trips, (level.breaker).open_until,
           (level.breaker).probe_until, (level.breaker).number, level.windows,
           level.tats, level.turns, level.paces, level.used_windows, level.used_until, level.used_amounts, array_agg(calls.holder ORDER BY calls.holder),
           array_agg(calls.count ORDER BY calls.holder), array_agg(calls.until ORDER BY calls.holder)
      FROM in_flight_calls AS calls
     WHERE calls.of_limit = level.of_limit AND calls.name = level.name AND calls.until > instant - expiry_grace_us()
       AND calls.since = level.since;
  END LOOP;
END $$;
