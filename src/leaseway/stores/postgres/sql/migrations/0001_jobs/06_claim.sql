-- Give each lane, in its order, an equal share, and what one cannot use to the others: leaseway.domain.lanes.share.
CREATE FUNCTION share(wanted integer, ready bigint[]) RETURNS integer[] LANGUAGE plpgsql IMMUTABLE STRICT AS $$
DECLARE
  shares integer[] := array_fill(0, ARRAY[cardinality(ready)]);
  hungry integer;
  each integer;
  portion integer;
BEGIN
  WHILE wanted > 0 LOOP
    hungry := (SELECT count(*) FROM unnest(ready, shares) AS lane (most, given) WHERE given < most);
    EXIT WHEN hungry = 0;
    each := greatest(wanted / hungry, 1);
    FOR n IN 1 .. cardinality(ready) LOOP
      portion := least(each, ready[n] - shares[n], wanted);
      shares[n] := shares[n] + portion;
      wanted := wanted - portion;
    END LOOP;
  END LOOP;
  RETURN shares;
END $$;

-- Lease the first jobs of each lane: higher priority first, then the earlier time to run, then the earlier submission.
-- The attempt is counted here, so that a job that kills its worker cannot come back for ever.
CREATE FUNCTION claim(worker text, wanted_queues text[], wanted integer, new_token text, lanes_max integer,
                      instant bigint)
RETURNS TABLE (what smallint, id text, fence integer, kind text, queue text, tenant text, payload text,
               attempts integer, attempts_max integer, lease_us bigint, timeout_us bigint, shard_key text,
               cursor text, priority smallint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  open_lanes integer[];
  shares integer[];
BEGIN
  SELECT array_agg(lane ORDER BY served_at, lane), share(wanted, array_agg(ready ORDER BY served_at, lane))
    INTO open_lanes, shares
    FROM (SELECT id AS lane, ready::bigint, served_at FROM lane_counts WHERE queue = ANY (wanted_queues) AND ready > 0
           ORDER BY served_at, id LIMIT lanes_max) AS open_lane;
  IF open_lanes IS NULL THEN
    RETURN;
  END IF;
  -- A hint for the next one: whoever serves the lane at the same moment says the same.
  UPDATE lanes SET served_at = instant
    FROM (SELECT lanes.id FROM lanes JOIN unnest(open_lanes, shares) AS served (id, portion) USING (id)
           WHERE portion > 0 FOR UPDATE OF lanes SKIP LOCKED) AS served
   WHERE lanes.id = served.id;
  RETURN QUERY
  WITH picked AS MATERIALIZED (
         SELECT n, first.id FROM unnest(open_lanes, shares) WITH ORDINALITY AS served (lane, portion, n)
          CROSS JOIN LATERAL (
            SELECT jobs.id FROM jobs WHERE jobs.lane = served.lane AND stage = 0
             ORDER BY jobs.priority DESC, run_at, seq LIMIT portion FOR UPDATE SKIP LOCKED) AS first),
       leased AS (
         UPDATE jobs SET stage = 2, attempts = jobs.attempts + 1, fence = jobs.fence + 1, token = new_token,
                owner = worker, until = instant + payloads.lease_us
           FROM picked JOIN payloads ON payloads.id = picked.id
          WHERE jobs.id = picked.id AND jobs.stage = 0
         RETURNING picked.n, jobs.seq, jobs.run_at, jobs.lane, jobs.id, jobs.fence, payloads.kind, payloads.payload,
                   jobs.attempts, payloads.attempts_max, payloads.lease_us, payloads.timeout_us, payloads.shard_key,
                   jobs.cursor, jobs.priority),
       counted AS (
         INSERT INTO lane_changes (lane, ready, leased)
         SELECT leased.lane, -count(*), count(*) FROM leased GROUP BY leased.lane)
  SELECT 0::smallint, leased.id, leased.fence, leased.kind, lanes.queue, lanes.tenant, leased.payload, leased.attempts,
         leased.attempts_max, leased.lease_us, leased.timeout_us, leased.shard_key, leased.cursor, leased.priority
    FROM leased JOIN lanes ON lanes.id = leased.lane
   ORDER BY leased.n, leased.priority DESC, leased.run_at, leased.seq;
END $$;

-- Leases that an earlier try of the same claim was granted, though its reply was lost. They are held from now on.
CREATE FUNCTION adopt(worker text, old_token text, instant bigint)
RETURNS TABLE (what smallint, id text, fence integer, kind text, queue text, tenant text, payload text,
               attempts integer, attempts_max integer, lease_us bigint, timeout_us bigint, shard_key text,
               cursor text, priority smallint)
LANGUAGE sql AS $$
  WITH held AS (
         UPDATE jobs SET until = instant + payloads.lease_us
           FROM payloads
          WHERE payloads.id = jobs.id AND stage = 2 AND token = old_token AND owner = worker
         RETURNING jobs.*, payloads.kind, payloads.payload, payloads.attempts_max, payloads.lease_us,
                   payloads.timeout_us, payloads.shard_key)
  SELECT 0::smallint, held.id, fence, kind, queue, tenant, payload, attempts, attempts_max, lease_us, timeout_us,
         shard_key, cursor, priority
    FROM held JOIN lanes ON lanes.id = held.lane ORDER BY seq
$$;
