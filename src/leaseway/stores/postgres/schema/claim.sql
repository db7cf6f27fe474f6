-- Claiming jobs: `exchange`, the one call that workers make all the time.
--
--   settle ─► survey the lanes ─► reclaim and promote, if due ─► lease ─► report gates and cancellations
--
-- A function call costs about ten times as much in an idle system as in a busy one, because its plans and pages have
-- left the processor's caches. So one query surveys everything that an exchange has to know, and a step that is rarely
-- due has a function of its own that is called only if the survey says so.

-- A row of the answer of `exchange`; `what` says which columns are set.
CREATE TYPE exchange_row AS (
  what text, -- 'lease'; 'lost': a settlement was rejected; 'cancel': stop this job; 'gate': jobs are ready behind a gate
  id text, fence integer, kind text, queue text, tenant text, payload text,
  attempts integer, -- of a gate: the number of its ready jobs
  attempts_max integer, lease_us bigint, timeout_us bigint, shard_key text, cursor text, priority smallint, needs text);

-- What an exchange has to know after it has settled.
CREATE TYPE lane_survey AS (
  any_expired boolean,   -- a lease has expired
  any_due boolean,       -- the time of a scheduled job has come
  any_to_cancel boolean, -- a job of this worker should stop
  any_gated boolean,     -- jobs are ready behind a gate
  lanes integer[], ready bigint[], usable bigint[], weights integer[], -- to claim from; the least served lane first
  lowest bigint,      -- the virtual time at which an idle lane rejoins
  first_vtime bigint, -- the smallest virtual time among these lanes, at least `lowest`
  last_served bigint);

-- Divide the wanted jobs among the lanes by weight; see leaseway.domain.lane.share. What one lane cannot use goes to
-- the others.
CREATE FUNCTION share(wanted integer, ready bigint[], weights integer[]) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  shares integer[] := array_fill(0, ARRAY[cardinality(ready)]);
  total bigint;
  portion integer;
  shared integer;
BEGIN
  WHILE wanted > 0 LOOP
    total := (SELECT sum(weight) FROM unnest(ready, shares, weights) AS lane (most, given, weight) WHERE given < most);
    EXIT WHEN total IS NULL;
    shared := 0;
    FOR n IN 1 .. cardinality(ready) LOOP
      portion := least(wanted::bigint * weights[n] / total, ready[n] - shares[n]);
      shares[n] := shares[n] + portion;
      shared := shared + portion;
    END LOOP;
    IF shared = 0 THEN -- an indivisible remainder goes to the first lanes
      FOR n IN 1 .. cardinality(ready) LOOP
        portion := least(1, ready[n] - shares[n], wanted - shared);
        shares[n] := shares[n] + portion;
        shared := shared + portion;
      END LOOP;
    END IF;
    wanted := wanted - shared;
  END LOOP;
  RETURN shares;
END $$;

-- Lock the first jobs of a lane: highest priority, then earliest time, then earliest submission. Jobs that another
-- transaction is claiming are skipped.
CREATE FUNCTION pick(wanted_lane integer, portion integer) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
  RETURN ARRAY(SELECT id FROM jobs WHERE lane = wanted_lane AND state = 'ready'
                ORDER BY priority DESC, run_at, seq LIMIT portion FOR UPDATE SKIP LOCKED);
END $$;

-- The same for a long lane. While an old snapshot prevents vacuum from removing dead rows, a scan from the beginning of
-- the lane steps over every job that was claimed before. When that takes long, this session remembers its position and
-- continues from there. It scans from the beginning again after a while, so that it spends at most a twentieth of its
-- time on such scans. Jobs of higher priority are always found.
CREATE FUNCTION pick_from_long_lane(wanted_lane integer, portion integer, instant bigint) RETURNS text[]
LANGUAGE plpgsql AS $$
DECLARE
  name text := format('leaseway.position_%s_%s', current_schema(), wanted_lane);
  resume_point bigint[] := nullif(current_setting(name, true), '')::bigint[]; -- priority, run_at, seq, valid until
  began timestamptz;
  took_us bigint;
  picked text[];
BEGIN
  IF resume_point[4] > instant THEN
    picked := pick_after(wanted_lane, portion, resume_point[1]::smallint, resume_point[2], resume_point[3]);
  END IF;
  IF picked IS NULL OR cardinality(picked) < portion THEN
    began := clock_timestamp();
    picked := pick(wanted_lane, portion);
    took_us := extract(epoch FROM clock_timestamp() - began) * 1000000;
    resume_point := ARRAY[0, 0, 0, CASE WHEN took_us > 5000 + 20 * portion
                                         THEN instant + greatest(20 * took_us, 1000000) END];
  END IF;
  IF resume_point[4] > instant AND picked <> '{}' THEN
    SELECT ARRAY[priority, run_at, seq, resume_point[4]] INTO resume_point FROM jobs WHERE id = picked[cardinality(picked)];
    PERFORM set_config(name, resume_point::text, false);
  END IF;
  RETURN picked;
END $$;

CREATE FUNCTION pick_after(wanted_lane integer, portion integer, from_priority smallint, from_run_at bigint, from_seq bigint)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE picked text[];
BEGIN
  picked := ARRAY(SELECT id FROM jobs WHERE lane = wanted_lane AND state = 'ready' AND priority > from_priority
                   ORDER BY priority DESC, run_at, seq LIMIT portion FOR UPDATE SKIP LOCKED);
  picked := picked || ARRAY(
    SELECT id FROM jobs WHERE lane = wanted_lane AND state = 'ready' AND priority = from_priority
       AND (run_at, seq) > (from_run_at, from_seq)
     ORDER BY run_at, seq LIMIT portion - cardinality(picked) FOR UPDATE SKIP LOCKED);
  RETURN picked || ARRAY(
    SELECT id FROM jobs WHERE lane = wanted_lane AND state = 'ready' AND priority < from_priority
     ORDER BY priority DESC, run_at, seq LIMIT portion - cardinality(picked) FOR UPDATE SKIP LOCKED);
END $$;

CREATE FUNCTION pick_from_lanes(survey lane_survey, shares integer[], instant bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE picked text[] := '{}';
BEGIN
  FOR n IN 1 .. cardinality(survey.lanes) LOOP
    IF survey.ready[n] < 10000 THEN
      picked := picked || pick(survey.lanes[n], shares[n]);
    ELSE
      picked := picked || pick_from_long_lane(survey.lanes[n], shares[n], instant);
    END IF;
  END LOOP;
  RETURN picked;
END $$;

-- Add the gated lanes that the worker may enter to a survey. `admits` says how many jobs each gate admits.
CREATE FUNCTION survey_with_gates(survey lane_survey, wanted_queues text[], lanes_max integer, admits json, only_tenant text)
RETURNS lane_survey LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE no_pauses boolean := NOT EXISTS (SELECT 1 FROM pauses);
BEGIN
  WITH admitted AS (
         SELECT needs, tenant, sum(count) AS most
           FROM json_to_recordset(admits) AS sent (needs text, tenant text, count integer) GROUP BY needs, tenant),
       waiting AS (
         SELECT lane_counts.*, most, greatest(vtime, survey.lowest) AS place
           FROM lane_counts LEFT JOIN admitted USING (needs, tenant)
          WHERE queue = ANY (wanted_queues) AND ready > 0 AND (NOT is_gated OR most > 0)
            AND (only_tenant IS NULL OR tenant = only_tenant)
            AND (no_pauses OR NOT is_paused)
          ORDER BY vtime, queue, tenant, needs LIMIT lanes_max),
       behind AS (
         SELECT *, sum(ready) OVER (PARTITION BY needs, tenant ORDER BY vtime, queue) - ready AS before FROM waiting),
       turns AS (
         SELECT id, ready::bigint AS ready, weight, served_at, place,
                CASE WHEN is_gated THEN greatest(least(ready, most - before), 0) ELSE ready END::bigint AS usable
           FROM behind ORDER BY vtime, queue, tenant, needs)
  SELECT array_agg(id), array_agg(ready), array_agg(usable), array_agg(weight), min(place), max(served_at)
    INTO survey.lanes, survey.ready, survey.usable, survey.weights, survey.first_vtime, survey.last_served
    FROM turns;
  RETURN survey;
END $$;

-- Lease the first jobs of these lanes, and advance the virtual time of the lanes. The attempt is counted here and not
-- when it ends, so that a job that kills its worker runs out of attempts.
CREATE FUNCTION lease(worker text, wanted integer, new_token text, survey lane_survey, instant bigint)
RETURNS SETOF exchange_row LANGUAGE plpgsql AS $$
DECLARE
  is_alone boolean := cardinality(survey.lanes) = 1;
  shares integer[] := CASE WHEN is_alone THEN ARRAY[least(wanted, survey.usable[1])]
                           ELSE share(wanted, survey.usable, survey.weights) END;
  picked text[];
BEGIN
  -- A single long lane competes with no other, so its row is written about once a second instead of by every claim.
  IF NOT is_alone OR survey.ready[1] < 10000 OR survey.last_served < instant - 1000000 THEN
    -- The order of lanes may be approximate: a lane that another transaction is updating is skipped.
    UPDATE lanes
       SET served_at = instant, vfloor = greatest(vfloor, survey.first_vtime),
           vtime = greatest(vtime, survey.lowest)
                   + shares[array_position(survey.lanes, id)]::bigint * 1000000
                     / survey.weights[array_position(survey.lanes, id)]
     WHERE id = ANY (ARRAY(SELECT free.id FROM lanes AS free
                            WHERE free.id = ANY (survey.lanes) AND shares[array_position(survey.lanes, free.id)] > 0
                              FOR UPDATE SKIP LOCKED));
  END IF;
  IF is_alone AND survey.ready[1] < 10000 THEN -- the query of `pick` without the function call
    picked := ARRAY(SELECT jobs.id FROM jobs WHERE jobs.lane = survey.lanes[1] AND state = 'ready'
                     ORDER BY jobs.priority DESC, run_at, seq LIMIT shares[1] FOR UPDATE SKIP LOCKED);
  ELSE
    picked := pick_from_lanes(survey, shares, instant);
  END IF;
  IF picked = '{}' THEN
    RETURN;
  END IF;
  RETURN QUERY
  WITH leased AS (
         UPDATE jobs SET state = 'leased', attempts = jobs.attempts + 1, fence = jobs.fence + 1, token = new_token,
                owner = worker, until = instant + payloads.lease_us
           FROM unnest(picked) WITH ORDINALITY AS picked (id, place) JOIN payloads ON payloads.id = picked.id
          WHERE jobs.id = picked.id
         RETURNING place, jobs.lane, jobs.id, jobs.fence, payloads.kind, payloads.payload, jobs.attempts,
                   payloads.attempts_max, payloads.lease_us, payloads.timeout_us, payloads.shard_key, jobs.cursor,
                   jobs.priority),
       counted AS (
         INSERT INTO lane_changes (lane, ready, leased)
         SELECT leased.lane, -count(*), count(*) FROM leased GROUP BY leased.lane)
  SELECT 'lease', leased.id, leased.fence, leased.kind, lanes.queue, lanes.tenant, leased.payload, leased.attempts,
         leased.attempts_max, leased.lease_us, leased.timeout_us, leased.shard_key, leased.cursor, leased.priority,
         lanes.needs
    FROM leased JOIN lanes ON lanes.id = leased.lane
   ORDER BY place;
END $$;

-- The leases that an earlier try of the same claim was granted and whose reply was lost. They are renewed.
CREATE FUNCTION repeat_claim(worker text, old_token text, instant bigint) RETURNS SETOF exchange_row LANGUAGE sql AS $$
  WITH held AS (
         UPDATE jobs SET until = instant + payloads.lease_us
           FROM payloads
          WHERE payloads.id = jobs.id AND state = 'leased' AND token = old_token AND owner = worker
         RETURNING jobs.*, payloads.kind, payloads.payload, payloads.attempts_max, payloads.lease_us,
                   payloads.timeout_us, payloads.shard_key)
  SELECT 'lease', held.id, fence, kind, queue, tenant, payload, attempts, attempts_max, lease_us, timeout_us,
         shard_key, cursor, priority, needs
    FROM held JOIN lanes ON lanes.id = held.lane ORDER BY seq
$$;

-- The gates behind which jobs are ready, except those that the worker knows to be closed.
CREATE FUNCTION list_gates(wanted_queues text[], gates_max integer, closed json, only_tenant text)
RETURNS SETOF exchange_row LANGUAGE plpgsql STABLE AS $$
DECLARE no_pauses boolean := NOT EXISTS (SELECT 1 FROM pauses);
BEGIN
  RETURN QUERY
  SELECT 'gate', NULL, NULL::integer, NULL, NULL, waiting.tenant, NULL, least(sum(waiting.ready), 2147483647)::integer,
         NULL::integer, NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, waiting.needs
    FROM (SELECT lane_counts.needs, lane_counts.tenant, ready,
                 row_number() OVER (ORDER BY vtime, lane_counts.queue, lane_counts.tenant, lane_counts.needs) AS turn
            FROM lane_counts WHERE lane_counts.queue = ANY (wanted_queues) AND ready > 0 AND is_gated
             AND (only_tenant IS NULL OR lane_counts.tenant = only_tenant)
             AND (no_pauses OR NOT is_paused)
             AND (closed IS NULL OR (lane_counts.needs, lane_counts.tenant) NOT IN (
                    SELECT gate.needs, gate.tenant FROM json_to_recordset(closed) AS gate (needs text, tenant text)))
         ) AS waiting
   GROUP BY waiting.needs, waiting.tenant ORDER BY min(turn) LIMIT gates_max;
END $$;

-- Settle, reclaim, promote and claim in one transaction and one round trip. With `only_tenant`, only jobs of this
-- tenant are claimed. The settings make the plans independent of statistics, which are always out of date for a table
-- that empties and fills within a second.
CREATE FUNCTION exchange(
  worker text, wanted_queues text[], wanted integer, new_token text, is_repeat boolean,
  done_ids text[], done_tokens text[], done_results text[], others json,
  parents text[], parent_tokens text[], child_ids text[], child_payloads text[], child_spec_numbers integer[],
  child_specs json, child_keys text[], child_fingerprints text[], at bigint DEFAULT NULL, admits json DEFAULT NULL,
  closed json DEFAULT NULL, only_tenant text DEFAULT NULL)
RETURNS SETOF exchange_row LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  instant bigint := coalesce(at, now_us());
  paused_until text := format('leaseway.expiry_check_paused_until_%s', current_schema());
  began timestamptz;
  survey lane_survey;
BEGIN
  IF done_ids IS NOT NULL OR others IS NOT NULL THEN
    RETURN QUERY SELECT 'lost', lost, NULL::integer, NULL, NULL, NULL, NULL, NULL::integer, NULL::integer,
                        NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, NULL
                   FROM settle_with_children(done_ids, done_tokens, done_results, others, parents, parent_tokens,
                                             child_ids, child_payloads, child_spec_numbers, child_specs, child_keys,
                                             child_fingerprints, instant) AS lost;
  END IF;

  FOR round IN 1 .. 2 LOOP
    began := clock_timestamp();
    WITH known AS MATERIALIZED (
           SELECT id, queue, tenant, needs, ready::bigint AS ready, weight, served_at, vtime, vfloor, is_gated
             FROM lane_counts WHERE queue = ANY (wanted_queues)),
         floor AS MATERIALIZED (
           SELECT coalesce(max(vfloor), 0) AS lowest,
                  coalesce(bool_or(is_gated AND ready > 0), false) AS any_gated FROM known),
         turns AS (
           SELECT id, ready, weight, served_at, greatest(vtime, lowest) AS place
             FROM known CROSS JOIN floor
            WHERE ready > 0 AND NOT known.is_gated AND (only_tenant IS NULL OR tenant = only_tenant)
              AND (NOT EXISTS (SELECT 1 FROM pauses)
                   OR NOT EXISTS (SELECT 1 FROM pauses
                                   WHERE pauses.queue = known.queue AND pauses.tenant IN ('', known.tenant)))
            ORDER BY vtime, queue, tenant, needs LIMIT 100)
    -- The check for expired leases can be slow; see any_expired.
    SELECT coalesce(nullif(current_setting(paused_until, true), '')::bigint, 0) <= now_us()
             AND EXISTS (SELECT 1 FROM jobs WHERE state = 'leased' AND until <= instant),
           EXISTS (SELECT 1 FROM jobs WHERE state = 'scheduled' AND run_at <= instant),
           EXISTS (SELECT 1 FROM jobs WHERE state = 'leased' AND cancel_requested AND owner = worker),
           (SELECT any_gated FROM floor),
           array_agg(id), array_agg(ready), array_agg(ready), array_agg(weight),
           (SELECT lowest FROM floor), min(place), max(served_at)
      INTO survey.any_expired, survey.any_due, survey.any_to_cancel, survey.any_gated, survey.lanes, survey.ready,
           survey.usable, survey.weights, survey.lowest, survey.first_vtime, survey.last_served
      FROM turns;
    IF NOT survey.any_expired AND clock_timestamp() - began > interval '20 milliseconds' THEN
      -- Measure the check on its own: the survey may also be slow because it was planned just now or the machine is
      -- busy.
      PERFORM any_expired(instant);
    END IF;
    EXIT WHEN round = 2 OR NOT (survey.any_expired OR survey.any_due);
    -- Jobs that become ready here can be claimed at once, so the lanes are surveyed a second time.
    PERFORM reclaim(1000, instant);
    PERFORM promote(1000, instant);
  END LOOP;

  IF is_repeat THEN
    RETURN QUERY SELECT * FROM repeat_claim(worker, new_token, instant);
  END IF;
  IF wanted > 0 AND NOT (is_repeat AND FOUND) THEN
    IF admits IS NOT NULL THEN
      survey := survey_with_gates(survey, wanted_queues, 100, admits, only_tenant);
    END IF;
    IF survey.lanes IS NOT NULL THEN
      RETURN QUERY SELECT * FROM lease(worker, wanted, new_token, survey, instant);
    END IF;
  END IF;
  IF wanted > 0 AND survey.any_gated THEN
    RETURN QUERY SELECT * FROM list_gates(wanted_queues, 100, closed, only_tenant);
  END IF;
  IF survey.any_to_cancel THEN
    RETURN QUERY SELECT 'cancel', id, NULL::integer, NULL, NULL, NULL, NULL, NULL::integer, NULL::integer,
                        NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, NULL
                   FROM jobs WHERE state = 'leased' AND cancel_requested AND owner = worker ORDER BY seq;
  END IF;
  -- Counting the lane changes on every exchange would cost as much as reading them, so fold at random, and always where
  -- many lanes change at once.
  IF random() < 0.04 OR cardinality(survey.lanes) > 10 THEN
    PERFORM fold_lane_changes(25);
  END IF;
END $$;
