-- Lanes: their counters, how they are created, paused and resumed, and when a worker should look at them again.

-- The counters of each lane: the folded values plus the changes since. A lane is gated if its jobs need something or
-- its tenant is capped.
CREATE VIEW lane_counts AS
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

-- Add the changes to the lanes if there are at least `changes_min` of them and no other transaction is doing so.
-- Deleting and adding are one statement, so that every snapshot counts each change exactly once.
CREATE FUNCTION fold_lane_changes(changes_min integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT count(*) FROM (SELECT 1 FROM lane_changes LIMIT changes_min) AS waiting) < changes_min
     OR NOT pg_try_advisory_xact_lock(hashtext('leaseway.fold'), hashtext(current_schema())) THEN
    RETURN;
  END IF;
  WITH taken AS (DELETE FROM lane_changes RETURNING *),
       summed AS (SELECT lane, sum(ready) AS ready, sum(scheduled) AS scheduled, sum(leased) AS leased,
                         sum(done) AS done, sum(failed) AS failed, sum(cancelled) AS cancelled
                    FROM taken GROUP BY lane)
  UPDATE lanes
     SET ready = lanes.ready + summed.ready, scheduled = lanes.scheduled + summed.scheduled,
         leased = lanes.leased + summed.leased, done = lanes.done + summed.done,
         failed = lanes.failed + summed.failed, cancelled = lanes.cancelled + summed.cancelled
    FROM summed WHERE lanes.id = summed.lane;
END $$;

-- Record that jobs moved from one state to another; NULL stands for "not stored".
CREATE FUNCTION count_moves(moved integer[], before job_state[], after job_state[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO lane_changes (lane, ready, scheduled, leased, done, failed, cancelled)
  SELECT lane,
         count(*) FILTER (WHERE after = 'ready') - count(*) FILTER (WHERE before = 'ready'),
         count(*) FILTER (WHERE after = 'scheduled') - count(*) FILTER (WHERE before = 'scheduled'),
         count(*) FILTER (WHERE after = 'leased') - count(*) FILTER (WHERE before = 'leased'),
         count(*) FILTER (WHERE after = 'done') - count(*) FILTER (WHERE before = 'done'),
         count(*) FILTER (WHERE after = 'failed') - count(*) FILTER (WHERE before = 'failed'),
         count(*) FILTER (WHERE after = 'cancelled') - count(*) FILTER (WHERE before = 'cancelled')
    FROM unnest(moved, before, after) AS moves (lane, before, after)
   GROUP BY lane
$$;

CREATE FUNCTION find_or_create_lane(wanted_queue text, wanted_tenant text, wanted_needs text) RETURNS integer
LANGUAGE plpgsql AS $$
DECLARE found_id integer;
BEGIN
  SELECT id INTO found_id FROM lanes WHERE queue = wanted_queue AND tenant = wanted_tenant AND needs = wanted_needs;
  IF found_id IS NULL THEN
    INSERT INTO lanes (queue, tenant, needs) VALUES (wanted_queue, wanted_tenant, wanted_needs) ON CONFLICT DO NOTHING;
    SELECT id INTO found_id FROM lanes WHERE queue = wanted_queue AND tenant = wanted_tenant AND needs = wanted_needs;
  END IF;
  RETURN found_id;
END $$;

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

-- Microseconds until an exchange over these queues may find work: 0 if it may now, NULL if nothing is scheduled or
-- leased. `closed` lists gates that the worker knows to be closed.
CREATE FUNCTION wait_us(wanted_queues text[], at bigint DEFAULT NULL, closed json DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
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
  due := least((SELECT run_at FROM jobs WHERE state = 'scheduled' ORDER BY run_at, seq LIMIT 1),
               (SELECT until FROM jobs WHERE state = 'leased' ORDER BY until, seq LIMIT 1)) - coalesce(at, now_us());
  RETURN CASE WHEN due < 0 THEN 0 ELSE due END;
END $$;

-- Weights and caps of tenants apply from the next claim on.
CREATE FUNCTION set_tenant(new_name text, new_weight integer, new_starts text, new_concurrency integer, capped boolean)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
  INSERT INTO tenants (name, weight, starts, concurrency, is_capped)
  VALUES (new_name, new_weight, new_starts, new_concurrency, capped)
  ON CONFLICT (name) DO UPDATE
     SET weight = excluded.weight, starts = excluded.starts, concurrency = excluded.concurrency,
         is_capped = excluded.is_capped
$$;

CREATE FUNCTION forget_tenant(old_name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM tenants WHERE name = old_name;
  RETURN FOUND;
END $$;
