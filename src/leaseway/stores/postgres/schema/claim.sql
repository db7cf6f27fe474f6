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
  id text, fence bigint, kind text, queue text, tenant text, payload text,
  attempts integer, -- of a gate: the number of its ready jobs
  attempts_max integer, lease_us bigint, timeout_us bigint, shard_key text, cursor text, priority smallint, needs text);

-- The length of a lease, whatever number is stored; see leaseway.domain.outcome.usable_lease_us.
CREATE FUNCTION usable_lease_us(stored bigint) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT least(greatest(stored, 1000000), 86400000000)
$$;

-- What an exchange has to know after it has settled.
CREATE TYPE lane_survey AS (
  any_expired boolean,   -- a lease has expired
  any_due boolean,       -- the time of a scheduled job has come
  any_to_open boolean,   -- the time of a closed lane has come
  any_to_cancel boolean, -- a job of this worker should stop
  any_gated boolean,     -- jobs are ready behind a gate
  lanes integer[], ready bigint[], usable bigint[], weights integer[], -- to claim from; the least served flow first
  flows integer[],      -- the flow of each lane
  lane_places bigint[], -- the virtual time of each lane within its flow; NULL if every flow has one lane
  lowest bigint,      -- the virtual time at which an idle flow rejoins
  first_vtime bigint, -- the smallest virtual time among these flows, at least `lowest`
  last_served bigint);

-- Divide the wanted jobs by weight; see leaseway.domain.lane.share. What one lane or flow cannot use goes to the others.
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

-- Divide the wanted jobs among flows by weight, and the share of a flow among its lanes equally; see
-- leaseway.domain.lane.divide_claim.
CREATE FUNCTION divide_claim(wanted integer, usable bigint[], weights integer[], flows integer[]) RETURNS integer[]
LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  shares integer[] := array_fill(0, ARRAY[cardinality(usable)]);
  portions integer[];
  part integer[];
  turn record;
  n integer := 0;
BEGIN
  SELECT share(wanted, array_agg(most ORDER BY place), array_agg(weight ORDER BY place)) INTO portions
    FROM (SELECT min(lane.place) AS place, sum(lane.most)::bigint AS most, max(lane.weight) AS weight
            FROM unnest(flows, usable, weights) WITH ORDINALITY AS lane (flow, most, weight, place)
           GROUP BY lane.flow) AS flow;
  FOR turn IN
    SELECT array_agg(lane.place ORDER BY lane.place) AS places, array_agg(lane.most ORDER BY lane.place) AS most
      FROM unnest(flows, usable) WITH ORDINALITY AS lane (flow, most, place)
     GROUP BY lane.flow ORDER BY min(lane.place)
  LOOP
    n := n + 1;
    part := share(portions[n], turn.most, array_fill(1, ARRAY[cardinality(turn.most)]));
    FOR i IN 1 .. cardinality(part) LOOP
      shares[turn.places[i]] := part[i];
    END LOOP;
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

-- The first jobs of several lanes. Neighbouring short lanes are read by one query.
CREATE FUNCTION pick_from_lanes(survey lane_survey, shares integer[], instant bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  picked text[] := '{}';
  first integer := 1;
BEGIN
  FOR n IN 1 .. cardinality(survey.lanes) + 1 LOOP
    CONTINUE WHEN survey.ready[n] < 10000;
    IF n > first THEN
      picked := picked || ARRAY(
        SELECT job.id FROM unnest(survey.lanes[first : n - 1], shares[first : n - 1]) AS short (lane, portion)
         CROSS JOIN LATERAL (SELECT id FROM jobs WHERE jobs.lane = short.lane AND state = 'ready'
                              ORDER BY priority DESC, run_at, seq LIMIT portion FOR UPDATE SKIP LOCKED) AS job);
    END IF;
    IF n <= cardinality(survey.lanes) THEN
      picked := picked || pick_from_long_lane(survey.lanes[n], shares[n], instant);
    END IF;
    first := n + 1;
  END LOOP;
  RETURN picked;
END $$;

-- Add the gated lanes that the worker may enter to a survey, closed or not. `admits` says how many jobs each gate admits.
-- The first lane of each flow comes first, the flow furthest behind before the others; then the second lane of each.
CREATE FUNCTION survey_with_gates(survey lane_survey, wanted_queues text[], lanes_max integer, admits json, only_tenant text)
RETURNS lane_survey LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE no_pauses boolean := NOT EXISTS (SELECT 1 FROM pauses);
BEGIN
  WITH admitted AS MATERIALIZED (
         SELECT needs, tenant, sum(count) AS most
           FROM json_to_recordset(admits) AS sent (needs text, tenant text, count integer) GROUP BY needs, tenant),
       counted AS (
         SELECT id, sum(ready)::bigint AS ready, max(most) AS most
           FROM (SELECT lanes.id, lanes.ready, most
                   FROM admitted JOIN lanes ON lanes.needs = admitted.needs AND lanes.tenant = admitted.tenant
                  -- Found by the gate; see close_lanes.
                  WHERE queue || '' = ANY (wanted_queues) AND most > 0
                    AND (lanes.needs <> '' OR EXISTS (SELECT 1 FROM tenants WHERE name = lanes.tenant AND is_capped))
                 UNION ALL
                 SELECT lane, ready, NULL FROM lane_changes) AS changed
          GROUP BY id HAVING max(most) IS NOT NULL AND sum(ready) > 0),
       waiting AS MATERIALIZED (
         SELECT id, ready, NULL::bigint AS most FROM unnest(survey.lanes, survey.ready) AS plain (id, ready)
         UNION ALL
         SELECT * FROM counted),
       ranked AS (
         SELECT waiting.id, waiting.ready, most, flow, lanes.queue, lanes.tenant, needs, served_at, coalesce(weight, 1) AS weight,
                most IS NOT NULL AS is_gated, flows.vtime AS flow_vtime, greatest(flows.vtime, survey.lowest) AS place,
                greatest(lanes.vtime, lane_floor) AS lane_place,
                row_number() OVER (PARTITION BY flow ORDER BY lanes.vtime, needs) AS rank
           FROM waiting JOIN lanes ON lanes.id = waiting.id JOIN flows ON flows.id = flow
           LEFT JOIN tenants ON tenants.name = lanes.tenant
          WHERE (only_tenant IS NULL OR lanes.tenant = only_tenant)
            AND (no_pauses OR NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = lanes.queue
                                                                 AND pauses.tenant IN ('', lanes.tenant)))),
       first AS (
         SELECT *, row_number() OVER (ORDER BY rank, flow_vtime, queue, tenant) AS turn FROM ranked
          ORDER BY rank, flow_vtime, queue, tenant LIMIT lanes_max),
       turns AS (
         SELECT *, sum(ready) OVER (PARTITION BY needs, tenant ORDER BY turn) - ready AS before FROM first)
  SELECT array_agg(id ORDER BY turn), array_agg(ready::bigint ORDER BY turn),
         array_agg(CASE WHEN is_gated THEN greatest(least(ready, most - before), 0) ELSE ready END::bigint ORDER BY turn),
         array_agg(weight ORDER BY turn), array_agg(flow ORDER BY turn),
         CASE WHEN max(rank) > 1 THEN array_agg(lane_place ORDER BY turn) END,
         min(place), max(served_at)
    INTO survey.lanes, survey.ready, survey.usable, survey.weights, survey.flows, survey.lane_places, survey.first_vtime,
         survey.last_served
    FROM turns;
  RETURN survey;
END $$;

-- Advance the virtual times of the flows and lanes that a claim has served; see leaseway.domain.lane.advance. The order
-- may be approximate: a row that another transaction is updating is skipped.
CREATE FUNCTION advance(survey lane_survey, shares integer[], instant bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  WITH served AS MATERIALIZED (
         SELECT flow, sum(portion)::bigint AS portion, max(weight) AS weight,
                CASE WHEN count(*) > 1 THEN min(lane_place) END AS lane_floor
           FROM unnest(survey.flows, shares, survey.weights, survey.lane_places) AS lane (flow, portion, weight, lane_place)
          GROUP BY flow HAVING sum(portion) > 0),
       free AS MATERIALIZED (
         SELECT served.* FROM served JOIN flows ON flows.id = served.flow FOR UPDATE OF flows SKIP LOCKED)
  UPDATE flows
     SET served_at = instant, vfloor = greatest(flows.vfloor, survey.first_vtime),
         vtime = greatest(flows.vtime, survey.lowest) + free.portion * 1000000 / free.weight,
         lane_floor = greatest(flows.lane_floor, free.lane_floor)
    FROM free WHERE flows.id = free.flow;
  WITH served AS MATERIALIZED (
         SELECT id, lane_place + portion::bigint * 1000000 AS vtime
           FROM (SELECT *, count(*) OVER (PARTITION BY flow) AS rivals
                   FROM unnest(survey.lanes, survey.flows, shares, survey.lane_places) AS lane (id, flow, portion, lane_place))
                AS lane
          WHERE portion > 0 AND rivals > 1),
       free AS MATERIALIZED (
         SELECT served.* FROM served JOIN lanes ON lanes.id = served.id FOR UPDATE OF lanes SKIP LOCKED)
  UPDATE lanes SET vtime = free.vtime FROM free WHERE lanes.id = free.id;
END $$;

-- Lease the first jobs of these lanes, and advance the virtual times. The attempt is counted here and not
-- when it ends, so that a job that kills its worker runs out of attempts.
CREATE FUNCTION lease(worker text, wanted integer, new_token text, survey lane_survey, instant bigint)
RETURNS SETOF exchange_row LANGUAGE plpgsql AS $$
DECLARE
  is_alone boolean := cardinality(survey.lanes) = 1;
  shares integer[] := CASE WHEN is_alone THEN ARRAY[least(wanted, survey.usable[1])]
                           WHEN survey.lane_places IS NULL THEN share(wanted, survey.usable, survey.weights)
                           ELSE divide_claim(wanted, survey.usable, survey.weights, survey.flows) END;
  floor bigint := fence_floor();
  picked text[];
BEGIN
  -- A single long lane competes with no other, so its flow is written about once a second instead of by every claim.
  IF survey.lane_places IS NOT NULL THEN
    PERFORM advance(survey, shares, instant);
  ELSIF NOT is_alone OR survey.ready[1] < 10000 OR survey.last_served < instant - 1000000 THEN
    -- The same as `advance` for flows with one lane each.
    UPDATE flows
       SET served_at = instant, vfloor = greatest(vfloor, survey.first_vtime),
           vtime = greatest(vtime, survey.lowest)
                   + shares[array_position(survey.flows, id)]::bigint * 1000000
                     / survey.weights[array_position(survey.flows, id)]
     WHERE id = ANY (ARRAY(SELECT free.id FROM flows AS free
                            WHERE free.id = ANY (survey.flows) AND shares[array_position(survey.flows, free.id)] > 0
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
         -- A delayed copy of a claim can lease a job again under a token that has settled it: from now on the token
         -- stands for the new lease.
         UPDATE jobs SET state = 'leased', attempts = least(jobs.attempts, 2147483646) + 1,
                fence = least(greatest(jobs.fence, floor), 9223372036854775806) + 1,
                token = new_token, last_token = nullif(jobs.last_token, new_token), owner = worker,
                until = instant + usable_lease_us(payloads.lease_us)
           FROM unnest(picked) WITH ORDINALITY AS picked (id, place) JOIN payloads ON payloads.id = picked.id
          WHERE jobs.id = picked.id
         RETURNING place, jobs.lane, jobs.id, jobs.fence, payloads.kind, payloads.payload, jobs.attempts,
                   payloads.attempts_max, usable_lease_us(payloads.lease_us) AS lease_us, payloads.timeout_us,
                   payloads.shard_key, jobs.cursor,
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
CREATE FUNCTION repeat_claim(worker text, old_token text, most integer, instant bigint)
RETURNS SETOF exchange_row LANGUAGE sql AS $$
  WITH held AS (
         UPDATE jobs SET until = instant + usable_lease_us(payloads.lease_us)
           FROM payloads
          WHERE payloads.id = jobs.id AND token = old_token
            AND jobs.id = ANY (ARRAY(SELECT id FROM jobs WHERE state = 'leased' AND token = old_token AND owner = worker
                                      ORDER BY seq LIMIT most))
         RETURNING jobs.*, payloads.kind, payloads.payload, payloads.attempts_max,
                   usable_lease_us(payloads.lease_us) AS lease_us, payloads.timeout_us, payloads.shard_key)
  SELECT 'lease', held.id, fence, kind, queue, tenant, payload, attempts, attempts_max, lease_us, timeout_us,
         shard_key, cursor, priority, needs
    FROM held JOIN lanes ON lanes.id = held.lane ORDER BY seq
$$;

-- The gates behind which jobs are ready, in the order in which their lanes are served, except those of closed lanes.
CREATE FUNCTION list_gates(wanted_queues text[], gates_max integer, only_tenant text)
RETURNS SETOF exchange_row LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH ranked AS (
         SELECT *, row_number() OVER (PARTITION BY queue, tenant ORDER BY vtime, needs) AS rank
           FROM gated_lanes(wanted_queues, gates_max, only_tenant)),
       turns AS (
         SELECT *, row_number() OVER (ORDER BY rank, flow_vtime, queue, tenant) AS turn FROM ranked WHERE rank <= gates_max)
  SELECT 'gate', NULL, NULL::bigint, NULL, NULL, tenant, NULL, least(sum(ready), 2147483647)::integer,
         NULL::integer, NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, needs
    FROM turns GROUP BY needs, tenant ORDER BY min(turn) LIMIT gates_max;
END $$;

-- Settle, reclaim, promote and claim in one transaction and one round trip. With `only_tenant`, only jobs of this
-- tenant are claimed. The settings make the plans independent of statistics, which are always out of date for a table
-- that empties and fills within a second.
CREATE FUNCTION exchange(
  worker text, wanted_queues text[], wanted integer, new_token text, is_repeat boolean,
  done_ids text[], done_tokens text[], done_results text[], others json,
  parents text[], parent_tokens text[], child_ids text[], child_payloads text[], child_spec_numbers integer[],
  child_specs json, child_keys text[], child_fingerprints text[], at bigint DEFAULT NULL, admits json DEFAULT NULL,
  closed json DEFAULT NULL, only_tenant text DEFAULT NULL, repeat_max integer DEFAULT NULL)
RETURNS SETOF exchange_row LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  instant bigint := coalesce(at, now_us());
  late_at bigint := instant - expiry_grace_us();
  paused_until text := format('leaseway.expiry_check_paused_until_%s', current_schema());
  began timestamptz;
  survey lane_survey;
BEGIN
  IF done_ids IS NOT NULL OR others IS NOT NULL THEN
    RETURN QUERY SELECT 'lost', lost, NULL::bigint, NULL, NULL, NULL, NULL, NULL::integer, NULL::integer,
                        NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, NULL
                   FROM settle_with_children(done_ids, done_tokens, done_results, others, parents, parent_tokens,
                                             child_ids, child_payloads, child_spec_numbers, child_specs, child_keys,
                                             child_fingerprints, instant) AS lost;
  END IF;

  FOR round IN 1 .. 2 LOOP
    began := clock_timestamp();
    WITH fresh AS MATERIALIZED (SELECT lane, sum(ready) AS ready FROM lane_changes GROUP BY lane),
         -- The lanes without requirements: one for each flow. Lanes with requirements need a permit; see list_gates.
         plain AS MATERIALIZED (
           SELECT lanes.id, flow, queue, tenant, coalesce(weight, 1) AS weight, coalesce(is_capped, false) AS is_capped,
                  lanes.ready + coalesce(fresh.ready, 0)::bigint AS ready, closed_until
             FROM lanes LEFT JOIN fresh ON fresh.lane = lanes.id LEFT JOIN tenants ON tenants.name = lanes.tenant
            WHERE queue = ANY (wanted_queues) AND needs = ''),
         floor AS MATERIALIZED (
           SELECT coalesce(max(vfloor), 0) AS lowest FROM flows WHERE queue = ANY (wanted_queues)),
         turns AS (
           SELECT plain.id, ready, weight, flow, served_at, greatest(vtime, lowest) AS place
             FROM plain CROSS JOIN floor JOIN flows ON flows.id = flow
            WHERE ready > 0 AND NOT is_capped AND closed_until IS NULL
              AND (only_tenant IS NULL OR plain.tenant = only_tenant)
              AND (NOT EXISTS (SELECT 1 FROM pauses)
                   OR NOT EXISTS (SELECT 1 FROM pauses
                                   WHERE pauses.queue = plain.queue AND pauses.tenant IN ('', plain.tenant)))
            ORDER BY vtime, plain.queue, plain.tenant LIMIT 100)
    -- The check for expired leases can be slow; see any_expired.
    SELECT coalesce(nullif(current_setting(paused_until, true), '')::bigint, 0) <= now_us()
             AND EXISTS (SELECT 1 FROM jobs WHERE state = 'leased' AND until <= late_at),
           EXISTS (SELECT 1 FROM jobs WHERE state = 'scheduled' AND run_at <= instant),
           EXISTS (SELECT 1 FROM lanes WHERE closed_until <= instant),
           EXISTS (SELECT 1 FROM jobs WHERE state = 'leased' AND cancel_requested AND owner = worker),
           EXISTS (SELECT 1 FROM lanes
                    WHERE queue = ANY (wanted_queues) AND has_ready AND needs <> '' AND closed_until IS NULL)
             OR EXISTS (SELECT 1 FROM fresh JOIN lanes ON lanes.id = lane
                         WHERE fresh.ready > 0 AND queue = ANY (wanted_queues) AND needs <> '' AND closed_until IS NULL)
             OR EXISTS (SELECT 1 FROM plain WHERE is_capped AND ready > 0),
           array_agg(id), array_agg(ready), array_agg(ready), array_agg(weight), array_agg(flow),
           (SELECT lowest FROM floor), min(place), max(served_at)
      INTO survey.any_expired, survey.any_due, survey.any_to_open, survey.any_to_cancel, survey.any_gated, survey.lanes,
           survey.ready, survey.usable, survey.weights, survey.flows, survey.lowest, survey.first_vtime, survey.last_served
      FROM turns;
    IF NOT survey.any_expired AND clock_timestamp() - began > interval '20 milliseconds' THEN
      -- Measure the check on its own: the survey may also be slow because it was planned just now or the machine is
      -- busy.
      PERFORM any_expired(instant);
    END IF;
    EXIT WHEN round = 2 OR NOT (survey.any_expired OR survey.any_due OR survey.any_to_open);
    -- Jobs that become ready here can be claimed at once, so the lanes are surveyed a second time.
    IF survey.any_expired OR survey.any_due THEN
      PERFORM reclaim(1000, instant);
      PERFORM promote(500, instant);
    END IF;
    IF survey.any_to_open THEN
      PERFORM reopen_lanes(1000, instant);
    END IF;
  END LOOP;
  IF closed IS NOT NULL THEN
    survey.any_gated := close_lanes(closed, wanted_queues, only_tenant, instant) OR survey.any_gated;
  END IF;

  IF is_repeat THEN
    RETURN QUERY SELECT * FROM repeat_claim(worker, new_token, repeat_max, instant);
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
    RETURN QUERY SELECT * FROM list_gates(wanted_queues, 100, only_tenant);
  END IF;
  IF survey.any_to_cancel THEN
    RETURN QUERY SELECT 'cancel', id, NULL::bigint, NULL, NULL, NULL, NULL, NULL::integer, NULL::integer,
                        NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, NULL
                   FROM jobs WHERE state = 'leased' AND cancel_requested AND owner = worker ORDER BY seq;
  END IF;
  -- Counting the lane changes on every exchange would cost as much as reading them, so fold at random, and always where
  -- many lanes change at once.
  IF random() < 0.04 OR cardinality(survey.lanes) > 10 THEN
    PERFORM fold_lane_changes(25);
  END IF;
END $$;
