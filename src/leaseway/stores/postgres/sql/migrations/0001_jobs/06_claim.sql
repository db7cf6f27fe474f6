-- What an exchange answers, row by row: a lease (what = 0), a settlement that came too late (1), or a job of this worker
-- that shall stop (2), or a gate behind which jobs are ready, with their number as `attempts` (3).
CREATE TYPE exchanged AS (
  what smallint, id text, fence integer, kind text, queue text, tenant text, payload text, attempts integer,
  attempts_max integer, lease_us bigint, timeout_us bigint, shard_key text, cursor text, priority smallint,
  needs text);

-- Give each lane, in its order, its share by weight, and what one cannot use to the others: leaseway.domain.lane.share.
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
    IF shared = 0 THEN -- what cannot be divided goes to those in front
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

-- The first jobs of a lane, locked: higher priority first, then the earlier time to run, then the earlier submission.
-- What another transaction is claiming at the moment is left to it.
CREATE FUNCTION pick(wanted_lane integer, portion integer) RETURNS text[] LANGUAGE plpgsql AS $$
BEGIN
  RETURN ARRAY(SELECT id FROM jobs WHERE lane = wanted_lane AND stage = 0
                ORDER BY priority DESC, run_at, seq LIMIT portion FOR UPDATE SKIP LOCKED);
END $$;

-- The same for a long lane. While an old snapshot keeps dead rows alive, every look at the beginning of the lane steps
-- over all that was claimed before. When that takes long, this session remembers how far it got, and goes on from
-- there: until the next look from the beginning, for which it takes a twentieth of its time. Higher priorities are
-- never passed over.
CREATE FUNCTION pick_far(wanted_lane integer, portion integer, instant bigint) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  name text := format('leaseway.mark_%s_%s', current_schema(), wanted_lane);
  mark bigint[] := nullif(current_setting(name, true), '')::bigint[]; -- priority, run_at, seq, valid until
  began timestamptz;
  took_us bigint;
  picked text[];
BEGIN
  IF mark[4] > instant THEN
    picked := pick_from(wanted_lane, portion, mark[1]::smallint, mark[2], mark[3]);
  END IF;
  IF picked IS NULL OR cardinality(picked) < portion THEN
    began := clock_timestamp();
    picked := pick(wanted_lane, portion);
    took_us := extract(epoch FROM clock_timestamp() - began) * 1000000;
    mark := ARRAY[0, 0, 0, CASE WHEN took_us > 5000 + 20 * portion THEN instant + greatest(20 * took_us, 1000000) END];
  END IF;
  IF mark[4] > instant AND picked <> '{}' THEN
    SELECT ARRAY[priority, run_at, seq, mark[4]] INTO mark FROM jobs WHERE id = picked[cardinality(picked)];
    PERFORM set_config(name, mark::text, false);
  END IF;
  RETURN picked;
END $$;

CREATE FUNCTION pick_from(wanted_lane integer, portion integer, from_priority smallint, from_run_at bigint, from_seq bigint)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE picked text[];
BEGIN
  picked := ARRAY(SELECT id FROM jobs WHERE lane = wanted_lane AND stage = 0 AND priority > from_priority
                   ORDER BY priority DESC, run_at, seq LIMIT portion FOR UPDATE SKIP LOCKED);
  picked := picked || ARRAY(
    SELECT id FROM jobs WHERE lane = wanted_lane AND stage = 0 AND priority = from_priority
       AND (run_at, seq) > (from_run_at, from_seq)
     ORDER BY run_at, seq LIMIT portion - cardinality(picked) FOR UPDATE SKIP LOCKED);
  RETURN picked || ARRAY(
    SELECT id FROM jobs WHERE lane = wanted_lane AND stage = 0 AND priority < from_priority
     ORDER BY priority DESC, run_at, seq LIMIT portion - cardinality(picked) FOR UPDATE SKIP LOCKED);
END $$;

-- How far everybody was when a lane of these queues was served last.
CREATE FUNCTION floor_of(wanted_queues text[]) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN coalesce((SELECT max(vfloor) FROM lanes WHERE queue = ANY (wanted_queues)), 0);
END $$;

-- Which lanes may be claimed from if something is admitted, the one furthest behind first? Those without a gate, and
-- those whose gate is admitted: together they give no more than that.
CREATE FUNCTION turns(wanted_queues text[], lanes_max integer, admits json, lowest bigint)
RETURNS TABLE (id integer, ready bigint, usable bigint, weight integer, served_at bigint, place bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY
  WITH admitted AS (
         SELECT needs, tenant, sum(count) AS most
           FROM json_to_recordset(admits) AS sent (needs text, tenant text, count integer) GROUP BY needs, tenant),
       waiting AS (
         SELECT lane_counts.*, most, greatest(vtime, lowest) AS place
           FROM lane_counts LEFT JOIN admitted USING (needs, tenant)
          WHERE queue = ANY (wanted_queues) AND ready > 0 AND (NOT is_gated OR most > 0)
          ORDER BY greatest(vtime, lowest), vtime, queue, tenant, needs LIMIT lanes_max),
       behind AS (
         SELECT *, sum(ready) OVER (PARTITION BY needs, tenant ORDER BY place, vtime, queue) - ready AS before FROM waiting)
  SELECT id, ready::bigint, CASE WHEN is_gated THEN greatest(least(ready, most - before), 0) ELSE ready END::bigint,
         weight, served_at, place
    FROM behind ORDER BY place, vtime, queue, tenant, needs;
END $$;

-- How many jobs may this claim take from which lanes? They move on by that.
CREATE FUNCTION open_lanes(wanted_queues text[], wanted integer, lanes_max integer, admits json, instant bigint,
                           OUT lanes integer[], OUT ready bigint[], OUT shares integer[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  lowest bigint := floor_of(wanted_queues);
  usable bigint[];
  weights integer[];
  first_place bigint;
  last_served bigint;
BEGIN
  IF admits IS NULL THEN -- the shorter way, for those who know no gates
    SELECT array_agg(id), array_agg(turn.ready), array_agg(turn.ready), array_agg(weight), min(place), max(served_at)
      INTO lanes, ready, usable, weights, first_place, last_served
      FROM (SELECT id, ready::bigint, weight, served_at, greatest(vtime, lowest) AS place
              FROM lane_counts WHERE queue = ANY (wanted_queues) AND ready > 0 AND NOT is_gated
             ORDER BY greatest(vtime, lowest), vtime, queue, tenant, needs LIMIT lanes_max) AS turn;
  ELSE
    SELECT array_agg(id), array_agg(turn.ready), array_agg(turn.usable), array_agg(weight), min(place), max(served_at)
      INTO lanes, ready, usable, weights, first_place, last_served
      FROM turns(wanted_queues, lanes_max, admits, lowest) AS turn;
  END IF;
  shares := share(wanted, usable, weights);
  -- One long lane alone needs no turns, and no row of it for every claim.
  IF cardinality(lanes) > 1 OR ready[1] < 10000 OR last_served < instant - 1000000 THEN
    -- A hint for the next one: whoever serves the lane at the same moment is not waited for.
    UPDATE lanes AS each
       SET served_at = instant, vfloor = greatest(each.vfloor, first_place),
           vtime = greatest(each.vtime, lowest) + portion::bigint * 1000000 / weight
      FROM (SELECT each.id, portion, weight
              FROM unnest(lanes, shares, weights) AS served (id, portion, weight) JOIN lanes AS each USING (id)
             WHERE portion > 0 FOR UPDATE OF each SKIP LOCKED) AS served
     WHERE each.id = served.id;
  END IF;
END $$;

-- Behind which gates of these queues are jobs ready, and how many? In the order in which their lanes are served.
-- Not those of which the worker needs no word.
CREATE FUNCTION gated(wanted_queues text[], gates_max integer, closed json) RETURNS SETOF exchanged
LANGUAGE plpgsql STABLE AS $$
DECLARE lowest bigint := floor_of(wanted_queues);
BEGIN
  RETURN QUERY
  SELECT 3::smallint, NULL, NULL::integer, NULL, NULL, waiting.tenant, NULL, least(sum(waiting.ready), 2147483647)::integer,
         NULL::integer, NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, waiting.needs
    FROM (SELECT lane_counts.needs, lane_counts.tenant, ready,
                 row_number() OVER (ORDER BY greatest(vtime, lowest), vtime, lane_counts.queue, lane_counts.tenant,
                                             lane_counts.needs) AS turn
            FROM lane_counts WHERE lane_counts.queue = ANY (wanted_queues) AND ready > 0 AND is_gated
             AND (closed IS NULL OR (lane_counts.needs, lane_counts.tenant) NOT IN (
                    SELECT gate.needs, gate.tenant FROM json_to_recordset(closed) AS gate (needs text, tenant text)))) AS waiting
   GROUP BY waiting.needs, waiting.tenant ORDER BY min(turn) LIMIT gates_max;
END $$;

-- Whether there is a gate at all: two looks that cost nothing to those who have none.
CREATE FUNCTION any_gates(wanted_queues text[]) RETURNS boolean LANGUAGE plpgsql STABLE AS $$
BEGIN
  RETURN EXISTS (SELECT 1 FROM lanes WHERE queue = ANY (wanted_queues) AND needs <> '')
      OR EXISTS (SELECT 1 FROM tenants WHERE is_capped);
END $$;

-- Lease the first jobs of the lanes that have some. The attempt is counted here, so that a job that kills its worker
-- cannot come back for ever.
CREATE FUNCTION claim(worker text, wanted_queues text[], wanted integer, new_token text, lanes_max integer, admits json,
                      instant bigint)
RETURNS SETOF exchanged LANGUAGE plpgsql AS $$
DECLARE
  opened record := open_lanes(wanted_queues, wanted, lanes_max, admits, instant);
  picked text[] := '{}';
BEGIN
  FOR n IN 1 .. coalesce(cardinality(opened.lanes), 0) LOOP
    IF opened.ready[n] < 10000 THEN
      picked := picked || pick(opened.lanes[n], opened.shares[n]);
    ELSE
      picked := picked || pick_far(opened.lanes[n], opened.shares[n], instant);
    END IF;
  END LOOP;
  IF picked = '{}' THEN
    RETURN;
  END IF;
  RETURN QUERY
  WITH leased AS (
         UPDATE jobs SET stage = 2, attempts = jobs.attempts + 1, fence = jobs.fence + 1, token = new_token,
                owner = worker, until = instant + payloads.lease_us
           FROM unnest(picked) WITH ORDINALITY AS picked (id, place) JOIN payloads ON payloads.id = picked.id
          WHERE jobs.id = picked.id
         RETURNING place, jobs.lane, jobs.id, jobs.fence, payloads.kind, payloads.payload, jobs.attempts,
                   payloads.attempts_max, payloads.lease_us, payloads.timeout_us, payloads.shard_key, jobs.cursor,
                   jobs.priority),
       counted AS (
         INSERT INTO lane_changes (lane, ready, leased)
         SELECT leased.lane, -count(*), count(*) FROM leased GROUP BY leased.lane)
  SELECT 0::smallint, leased.id, leased.fence, leased.kind, lanes.queue, lanes.tenant, leased.payload, leased.attempts,
         leased.attempts_max, leased.lease_us, leased.timeout_us, leased.shard_key, leased.cursor, leased.priority, lanes.needs
    FROM leased JOIN lanes ON lanes.id = leased.lane
   ORDER BY place;
END $$;

-- Leases that an earlier try of the same claim was granted, though its reply was lost. They are held from now on.
CREATE FUNCTION adopt(worker text, old_token text, instant bigint)
RETURNS SETOF exchanged LANGUAGE sql AS $$
  WITH held AS (
         UPDATE jobs SET until = instant + payloads.lease_us
           FROM payloads
          WHERE payloads.id = jobs.id AND stage = 2 AND token = old_token AND owner = worker
         RETURNING jobs.*, payloads.kind, payloads.payload, payloads.attempts_max, payloads.lease_us,
                   payloads.timeout_us, payloads.shard_key)
  SELECT 0::smallint, held.id, fence, kind, queue, tenant, payload, attempts, attempts_max, lease_us, timeout_us,
         shard_key, cursor, priority, needs
    FROM held JOIN lanes ON lanes.id = held.lane ORDER BY seq
$$;
