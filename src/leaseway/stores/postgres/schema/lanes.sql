-- Lanes: their counters, how they are created, paused and resumed, and when a worker should look at them again.

-- The counters of each lane: the folded values plus the changes since. A lane is gated if its jobs need something or
-- its tenant is capped.
CREATE VIEW lane_counts AS
SELECT lanes.id, flow, queue, tenant, needs, vtime, closed_until, closed_why, coalesce(tenants.weight, 1) AS weight,
       needs <> '' OR coalesce(tenants.is_capped, false) AS is_gated,
       lanes.ready + coalesce(fresh.ready, 0) AS ready,
       lanes.scheduled + coalesce(fresh.scheduled, 0) AS scheduled,
       lanes.leased + coalesce(fresh.leased, 0) AS leased,
       lanes.done + coalesce(fresh.done, 0) AS done,
       lanes.failed + coalesce(fresh.failed, 0) AS failed,
       lanes.cancelled + coalesce(fresh.cancelled, 0) AS cancelled,
       lanes.bytes + coalesce(fresh.bytes, 0) AS bytes,
       EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = lanes.queue AND pauses.tenant IN ('', lanes.tenant)) AS is_paused
  FROM lanes
  LEFT JOIN (SELECT lane, sum(ready) AS ready, sum(scheduled) AS scheduled, sum(leased) AS leased,
                    sum(done) AS done, sum(failed) AS failed, sum(cancelled) AS cancelled, sum(bytes) AS bytes
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
                         sum(done) AS done, sum(failed) AS failed, sum(cancelled) AS cancelled, sum(bytes) AS bytes
                    FROM taken GROUP BY lane)
  UPDATE lanes
     SET ready = lanes.ready + summed.ready, has_ready = lanes.ready + summed.ready > 0, scheduled = lanes.scheduled + summed.scheduled,
         leased = lanes.leased + summed.leased, done = lanes.done + summed.done,
         failed = lanes.failed + summed.failed, cancelled = lanes.cancelled + summed.cancelled,
         bytes = lanes.bytes + summed.bytes
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
  IF found_id IS NOT NULL AND current_setting('transaction_isolation') <> 'read committed' THEN
    -- The snapshot of the caller's transaction may be older than the deletion of this lane, which is an error here.
    PERFORM 1 FROM lanes WHERE id = found_id FOR KEY SHARE;
  ELSIF found_id IS NULL THEN
    INSERT INTO flows (queue, tenant) VALUES (wanted_queue, wanted_tenant) ON CONFLICT DO NOTHING;
    INSERT INTO lanes (flow, queue, tenant, needs)
    SELECT id, queue, tenant, wanted_needs FROM flows WHERE queue = wanted_queue AND tenant = wanted_tenant
    ON CONFLICT DO NOTHING;
    SELECT id INTO found_id FROM lanes WHERE queue = wanted_queue AND tenant = wanted_tenant AND needs = wanted_needs;
  END IF;
  RETURN found_id;
END $$;

CREATE FUNCTION pause_lanes(paused_queue text, paused_tenant text, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO pauses (queue, tenant, since) VALUES (paused_queue, paused_tenant, coalesce(at, now_us()))
  ON CONFLICT DO NOTHING;
  RETURN FOUND OR await_replication();
END $$;

CREATE FUNCTION resume_lanes(paused_queue text, paused_tenant text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM pauses WHERE queue = paused_queue AND tenant = paused_tenant;
  RETURN FOUND OR await_replication();
END $$;

-- Close the lanes of these gates. A lane that is closed already keeps its time, a lane without a gate stays open, and a
-- lane that another transaction is updating is skipped: a worker will close it later. A wait of 0 opens lanes. The lanes
-- are found by the gate: a condition that no index serves keeps PostgreSQL from probing every queue for every gate.
-- Returns whether it has opened a lane.
CREATE FUNCTION close_lanes(closed json, wanted_queues text[], only_tenant text, instant bigint) RETURNS boolean
LANGUAGE sql AS $$
  WITH closing AS MATERIALIZED (
         SELECT lanes.id, CASE WHEN wait_us > 0 THEN instant + wait_us END AS until,
                CASE WHEN wait_us > 0 THEN gate.why END AS why
           FROM json_to_recordset(closed) AS gate (needs text, tenant text, wait_us bigint, why text)
           JOIN lanes USING (needs, tenant)
          WHERE lanes.queue || '' = ANY (wanted_queues) AND (lanes.closed_until IS NULL) = (wait_us > 0)
            AND (only_tenant IS NULL OR lanes.tenant = only_tenant)
            AND (needs <> '' OR EXISTS (SELECT 1 FROM tenants WHERE name = lanes.tenant AND is_capped))
            FOR UPDATE OF lanes SKIP LOCKED),
       changed AS (
         UPDATE lanes SET closed_until = closing.until, closed_why = closing.why FROM closing WHERE lanes.id = closing.id)
  SELECT coalesce(bool_or(until IS NULL), false) FROM closing
$$;

-- Open the lanes whose time has come. A worker asks the limiter again. Of the first ten thousand, tenants take turns.
CREATE FUNCTION reopen_lanes(most integer, instant bigint) RETURNS void LANGUAGE sql AS $$
  UPDATE lanes SET closed_until = NULL, closed_why = NULL
   WHERE id = ANY (ARRAY(
     SELECT lanes.id
       FROM (SELECT *, row_number() OVER (PARTITION BY tenant ORDER BY closed_until, id) AS turn
               FROM (SELECT id, tenant, closed_until FROM lanes WHERE closed_until <= instant
                      ORDER BY closed_until, id LIMIT 10000) AS first) AS turns
       JOIN lanes USING (id)
      ORDER BY turn, turns.closed_until, lanes.id LIMIT most FOR UPDATE OF lanes SKIP LOCKED))
$$;

-- Open the lanes whose needs name a limit or a budget that has changed. Returns how many were opened.
CREATE FUNCTION open_lanes(quoted_name text, most integer, only_tenant text) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE opened integer;
BEGIN
  UPDATE lanes SET closed_until = NULL, closed_why = NULL
   WHERE id = ANY (ARRAY(SELECT closed.id FROM lanes AS closed
                          WHERE closed.closed_until IS NOT NULL AND strpos(closed.needs, quoted_name) > 0
                            AND (only_tenant IS NULL OR closed.tenant = only_tenant)
                          ORDER BY closed.closed_until, closed.id LIMIT most FOR UPDATE));
  GET DIAGNOSTICS opened = ROW_COUNT;
  IF opened = 0 THEN
    PERFORM await_replication();
  END IF;
  RETURN opened;
END $$;

-- The lanes behind a gate that have ready jobs and are not closed; of each flow, the first ones in their order.
CREATE FUNCTION gated_lanes(wanted_queues text[], lanes_max integer, only_tenant text)
RETURNS TABLE (queue text, tenant text, needs text, vtime bigint, flow_vtime bigint, ready bigint)
LANGUAGE sql STABLE AS $$
  WITH fresh AS MATERIALIZED (
         SELECT lane, sum(ready)::bigint AS ready FROM lane_changes GROUP BY lane HAVING sum(ready) <> 0),
       wanted AS MATERIALIZED (
         SELECT flows.*, is_capped FROM flows LEFT JOIN tenants ON tenants.name = flows.tenant
          WHERE flows.queue = ANY (wanted_queues) AND (only_tenant IS NULL OR flows.tenant = only_tenant)
            AND (NOT EXISTS (SELECT 1 FROM pauses)
                 OR NOT EXISTS (SELECT 1 FROM pauses
                                 WHERE pauses.queue = flows.queue AND pauses.tenant IN ('', flows.tenant)))),
       found AS (
         SELECT first.id, first.needs, first.vtime, first.ready, wanted.queue, wanted.tenant, wanted.vtime AS flow_vtime
           FROM wanted CROSS JOIN LATERAL (
                  SELECT * FROM lanes
                   WHERE lanes.queue = wanted.queue AND lanes.tenant = wanted.tenant
                     AND has_ready AND needs <> '' AND closed_until IS NULL
                   -- At most as many lanes have become empty since the changes were folded.
                   ORDER BY lanes.vtime, lanes.needs
                   LIMIT lanes_max + (SELECT count(*) FROM fresh WHERE fresh.ready < 0)) AS first
         UNION ALL
         SELECT lanes.id, needs, lanes.vtime, lanes.ready, lanes.queue, lanes.tenant, flows.vtime
           FROM fresh JOIN lanes ON lanes.id = fresh.lane JOIN flows ON flows.id = lanes.flow
          WHERE fresh.ready > 0 AND NOT has_ready AND needs <> '' AND closed_until IS NULL
            AND lanes.queue = ANY (wanted_queues) AND (only_tenant IS NULL OR lanes.tenant = only_tenant)
            AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = lanes.queue AND pauses.tenant IN ('', lanes.tenant))
         UNION ALL
         SELECT lanes.id, needs, lanes.vtime, lanes.ready, wanted.queue, wanted.tenant, wanted.vtime
           FROM wanted JOIN lanes ON lanes.queue = wanted.queue AND lanes.tenant = wanted.tenant AND needs = ''
          WHERE is_capped AND closed_until IS NULL)
  -- Added by sorting or hashing: a join would compare each lane with each change.
  SELECT max(counted.queue), max(counted.tenant), max(counted.needs), max(counted.vtime), max(counted.flow_vtime),
         sum(counted.ready)::bigint
    FROM (SELECT * FROM found
          UNION ALL
          SELECT lane, NULL, NULL, fresh.ready, NULL, NULL, NULL FROM fresh) AS counted
   GROUP BY counted.id HAVING max(counted.needs) IS NOT NULL AND sum(counted.ready) > 0
$$;

-- Microseconds until an exchange over these queues may find work: 0 if it may now, NULL if nothing is scheduled, leased
-- or closed. `closed` lists gates that the worker knows to be closed.
CREATE FUNCTION wait_us(wanted_queues text[], at bigint DEFAULT NULL, closed json DEFAULT NULL) RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan SET enable_seqscan = off AS $$
DECLARE
  due bigint;
  no_pauses boolean := NOT EXISTS (SELECT 1 FROM pauses);
  known integer := coalesce(json_array_length(closed), 0);
BEGIN
  IF EXISTS (SELECT 1 FROM lane_counts
              WHERE queue = ANY (wanted_queues) AND needs = '' AND ready > 0 AND NOT is_gated AND closed_until IS NULL
                AND (no_pauses OR NOT is_paused))
     OR EXISTS (SELECT 1 FROM gated_lanes(wanted_queues, known + 1, NULL) AS gated
                 WHERE closed IS NULL OR (gated.needs, gated.tenant) NOT IN (
                   SELECT gate.needs, gate.tenant FROM json_to_recordset(closed) AS gate (needs text, tenant text))) THEN
    RETURN 0;
  END IF;
  due := least((SELECT run_at FROM jobs WHERE state = 'scheduled' ORDER BY run_at, seq LIMIT 1),
               (SELECT until FROM jobs WHERE state = 'leased' ORDER BY until, seq LIMIT 1) + expiry_grace_us(),
               (SELECT closed_until FROM lanes WHERE closed_until IS NOT NULL ORDER BY closed_until LIMIT 1))
         - coalesce(at, now_us());
  RETURN CASE WHEN due < 0 THEN 0 ELSE due END;
END $$;

-- Weights and caps of tenants apply from the next claim on, so its closed lanes open.
CREATE FUNCTION set_tenant(new_name text, new_weight integer, new_starts text, new_concurrency integer, capped boolean,
                           new_quotas text)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
  INSERT INTO tenants (name, weight, starts, concurrency, is_capped, quotas)
  VALUES (new_name, new_weight, new_starts, new_concurrency, capped, new_quotas)
  ON CONFLICT (name) DO UPDATE
     SET weight = excluded.weight, starts = excluded.starts, concurrency = excluded.concurrency,
         is_capped = excluded.is_capped, quotas = excluded.quotas;
  UPDATE lanes SET closed_until = NULL, closed_why = NULL WHERE closed_until IS NOT NULL AND tenant = new_name
$$;

CREATE FUNCTION forget_tenant(old_name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE lanes SET closed_until = NULL, closed_why = NULL WHERE closed_until IS NOT NULL AND tenant = old_name;
  DELETE FROM tenants WHERE name = old_name;
  RETURN FOUND OR await_replication();
END $$;
