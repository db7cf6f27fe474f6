-- Lane counters: what was folded, and what transactions changed since. A lane is behind a gate if its jobs need something
-- or its tenant is capped.

CREATE VIEW lane_counts AS
SELECT lanes.id, queue, tenant, needs, served_at, vtime, vfloor, coalesce(tenants.weight, 1) AS weight,
       needs <> '' OR coalesce(tenants.is_capped, false) AS is_gated,
       lanes.ready + coalesce(fresh.ready, 0) AS ready,
       lanes.scheduled + coalesce(fresh.scheduled, 0) AS scheduled,
       lanes.leased + coalesce(fresh.leased, 0) AS leased,
       lanes.done + coalesce(fresh.done, 0) AS done,
       lanes.failed + coalesce(fresh.failed, 0) AS failed,
       lanes.cancelled + coalesce(fresh.cancelled, 0) AS cancelled
  FROM lanes
  LEFT JOIN (SELECT lane, sum(ready) AS ready, sum(scheduled) AS scheduled, sum(leased) AS leased,
                    sum(done) AS done, sum(failed) AS failed, sum(cancelled) AS cancelled
               FROM lane_changes GROUP BY lane) AS fresh ON fresh.lane = lanes.id
  LEFT JOIN tenants ON tenants.name = lanes.tenant;

-- Add the changes to the lanes, if there are many and nobody else is doing so. Deleting and adding are one statement:
-- a change is counted once at every moment.
CREATE FUNCTION fold(many integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT count(*) FROM (SELECT 1 FROM lane_changes LIMIT many) AS waiting) < many
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

-- Note that jobs of lanes moved from one stage to another; -1 stands for "outside".
CREATE FUNCTION count_moves(moved integer[], before smallint[], after smallint[]) RETURNS void LANGUAGE sql AS $$
  INSERT INTO lane_changes (lane, ready, scheduled, leased, done, failed, cancelled)
  SELECT lane,
         count(*) FILTER (WHERE after = 0) - count(*) FILTER (WHERE before = 0),
         count(*) FILTER (WHERE after = 1) - count(*) FILTER (WHERE before = 1),
         count(*) FILTER (WHERE after = 2) - count(*) FILTER (WHERE before = 2),
         count(*) FILTER (WHERE after = 3) - count(*) FILTER (WHERE before = 3),
         count(*) FILTER (WHERE after = 4) - count(*) FILTER (WHERE before = 4),
         count(*) FILTER (WHERE after = 5) - count(*) FILTER (WHERE before = 5)
    FROM unnest(moved, before, after) AS moves (lane, before, after)
   GROUP BY lane
$$;
