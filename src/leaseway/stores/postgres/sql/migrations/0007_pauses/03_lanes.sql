-- Lanes from which nothing is claimed until somebody resumes them. An empty tenant stands for all tenants of the queue,
-- also for those who come later.
CREATE TABLE pauses (
  queue text COLLATE "C" NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  since bigint NOT NULL,
  PRIMARY KEY (queue, tenant)
);

CREATE OR REPLACE VIEW lane_counts AS
SELECT lanes.id, queue, tenant, needs, served_at, vtime, vfloor, coalesce(tenants.weight, 1) AS weight,
       needs <> '' OR coalesce(tenants.is_capped, false) AS is_gated,
       lanes.ready + coalesce(fresh.ready, 0) AS ready,
       lanes.scheduled + coalesce(fresh.scheduled, 0) AS scheduled,
       lanes.leased + coalesce(fresh.leased, 0) AS leased,
       lanes.done + coalesce(fresh.done, 0) AS done,
       lanes.failed + coalesce(fresh.failed, 0) AS failed,
       lanes.cancelled + coalesce(fresh.cancelled, 0) AS cancelled,
       EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = lanes.queue AND pauses.tenant IN ('', lanes.tenant)) AS is_paused
  FROM lanes
  LEFT JOIN (SELECT lane, sum(ready) AS ready, sum(scheduled) AS scheduled, sum(leased) AS leased,
                    sum(done) AS done, sum(failed) AS failed, sum(cancelled) AS cancelled
               FROM lane_changes GROUP BY lane) AS fresh ON fresh.lane = lanes.id
  LEFT JOIN tenants ON tenants.name = lanes.tenant;

CREATE FUNCTION pause_lanes(paused_queue text, paused_tenant text, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO pauses (queue, tenant, since) VALUES (paused_queue, paused_tenant, coalesce(at, now_us()))
  ON CONFLICT DO NOTHING;
  RETURN FOUND;
END $$;

CREATE FUNCTION resume_lanes(paused_queue text, paused_tenant text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM pauses WHERE queue = paused_queue AND tenant = paused_tenant;
  RETURN FOUND;
END $$;

-- As before, without the lanes that are paused. Nearly always there is no pause, and one look says so for all lanes.
CREATE OR REPLACE FUNCTION turns(wanted_queues text[], lanes_max integer, admits json, lowest bigint)
RETURNS TABLE (id integer, ready bigint, usable bigint, weight integer, served_at bigint, place bigint)
LANGUAGE plpgsql STABLE AS $$
#variable_conflict use_column
DECLARE
  only_tenant text := wanted_tenant();
  no_pauses boolean := NOT EXISTS (SELECT 1 FROM pauses);
BEGIN
  RETURN QUERY
  WITH admitted AS (
         SELECT needs, tenant, sum(count) AS most
           FROM json_to_recordset(admits) AS sent (needs text, tenant text, count integer) GROUP BY needs, tenant),
       waiting AS (
         SELECT lane_counts.*, most, greatest(vtime, lowest) AS place
           FROM lane_counts LEFT JOIN admitted USING (needs, tenant)
          WHERE queue = ANY (wanted_queues) AND ready > 0 AND (NOT is_gated OR most > 0)
            AND (only_tenant IS NULL OR tenant = only_tenant)
            AND (no_pauses OR NOT is_paused)
          ORDER BY greatest(vtime, lowest), vtime, queue, tenant, needs LIMIT lanes_max),
       behind AS (
         SELECT *, sum(ready) OVER (PARTITION BY needs, tenant ORDER BY place, vtime, queue) - ready AS before FROM waiting)
  SELECT id, ready::bigint, CASE WHEN is_gated THEN greatest(least(ready, most - before), 0) ELSE ready END::bigint,
         weight, served_at, place
    FROM behind ORDER BY place, vtime, queue, tenant, needs;
END $$;

CREATE OR REPLACE FUNCTION open_lanes(wanted_queues text[], wanted integer, lanes_max integer, admits json, instant bigint,
                           OUT lanes integer[], OUT ready bigint[], OUT shares integer[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  lowest bigint := floor_of(wanted_queues);
  only_tenant text := wanted_tenant();
  no_pauses boolean := NOT EXISTS (SELECT 1 FROM pauses);
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
               AND (only_tenant IS NULL OR tenant = only_tenant)
               AND (no_pauses OR NOT is_paused)
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

CREATE OR REPLACE FUNCTION gated(wanted_queues text[], gates_max integer, closed json) RETURNS SETOF exchanged
LANGUAGE plpgsql STABLE AS $$
DECLARE
  lowest bigint := floor_of(wanted_queues);
  only_tenant text := wanted_tenant();
  no_pauses boolean := NOT EXISTS (SELECT 1 FROM pauses);
BEGIN
  RETURN QUERY
  SELECT 3::smallint, NULL, NULL::integer, NULL, NULL, waiting.tenant, NULL, least(sum(waiting.ready), 2147483647)::integer,
         NULL::integer, NULL::bigint, NULL::bigint, NULL, NULL, NULL::smallint, waiting.needs
    FROM (SELECT lane_counts.needs, lane_counts.tenant, ready,
                 row_number() OVER (ORDER BY greatest(vtime, lowest), vtime, lane_counts.queue, lane_counts.tenant,
                                             lane_counts.needs) AS turn
            FROM lane_counts WHERE lane_counts.queue = ANY (wanted_queues) AND ready > 0 AND is_gated
             AND (only_tenant IS NULL OR lane_counts.tenant = only_tenant)
             AND (no_pauses OR NOT is_paused)
             AND (closed IS NULL OR (lane_counts.needs, lane_counts.tenant) NOT IN (
                    SELECT gate.needs, gate.tenant FROM json_to_recordset(closed) AS gate (needs text, tenant text)))) AS waiting
   GROUP BY waiting.needs, waiting.tenant ORDER BY min(turn) LIMIT gates_max;
END $$;

CREATE OR REPLACE FUNCTION wait_us(wanted_queues text[], at bigint DEFAULT NULL, closed json DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE
  due bigint;
  no_pauses boolean := NOT EXISTS (SELECT 1 FROM pauses);
BEGIN
  IF EXISTS (SELECT 1 FROM lane_counts
              WHERE queue = ANY (wanted_queues) AND ready > 0 AND (no_pauses OR NOT is_paused)
                AND (NOT is_gated OR closed IS NULL OR (needs, tenant) NOT IN (
                      SELECT gate.needs, gate.tenant FROM json_to_recordset(closed) AS gate (needs text, tenant text)))) THEN
    RETURN 0;
  END IF;
  due := least((SELECT run_at FROM jobs WHERE stage = 1 ORDER BY run_at, seq LIMIT 1),
               (SELECT until FROM jobs WHERE stage = 2 ORDER BY until, seq LIMIT 1)) - coalesce(at, now_us());
  RETURN CASE WHEN due < 0 THEN 0 ELSE due END;
END $$;
