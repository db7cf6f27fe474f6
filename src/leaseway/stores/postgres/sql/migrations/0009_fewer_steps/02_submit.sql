-- One job without a key whose id nobody has seen before, by the shortest way: its lane, its two rows and its count in one
-- statement, and no look for a finished job of the same id. `submit_one`, which looks, goes with the next version.
CREATE FUNCTION submit_fresh(
  new_id text, new_payload text, queue text, tenant text, kind text, priority smallint, attempts_max integer,
  lease_us bigint, timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint, needs text, at bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
  instant bigint := coalesce(at, now_us());
  starts_at bigint := coalesce(run_at, instant + delay_us);
  is_ready integer := (starts_at <= instant)::integer;
BEGIN
  FOR try IN 1 .. 2 LOOP
    WITH lane AS MATERIALIZED (
           SELECT lanes.id FROM lanes WHERE lanes.queue = queue AND lanes.tenant = tenant AND lanes.needs = needs),
         body AS (
           INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload)
           SELECT new_id, instant, lease_us, timeout_us, attempts_max, kind, shard_key, new_payload FROM lane),
         job AS (
           INSERT INTO jobs (id, lane, stage, priority, run_at, cursor)
           SELECT new_id, lane.id, 1 - is_ready, priority, starts_at, cursor FROM lane)
    INSERT INTO lane_changes (lane, ready, scheduled) SELECT lane.id, is_ready, 1 - is_ready FROM lane;
    EXIT WHEN FOUND;
    PERFORM lane_of(queue, tenant, needs); -- the first job that this lane sees
  END LOOP;
END $$;

-- Tell the workers that there may be work, and nothing else. A hint needs no disk.
CREATE FUNCTION hint() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM pg_notify('leaseway.' || current_schema(), '');
END $$;

-- What `ring` does besides, for those who gave a hint only.
CREATE FUNCTION tidy() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM set_config('synchronous_commit', 'off', true);
  PERFORM fold(1000);
END $$;

-- One job, and when it is stored, the hint: in one round trip, but not in one transaction, because a NOTIFY makes its own
-- transaction wait in line with every other that has one. It may commit on its way because it has neither rights nor
-- settings of its own; so it names the schema. From its first COMMIT on nothing may fail: the job is stored.
CREATE PROCEDURE submit_fresh_and_ring(
  new_id text, new_payload text, queue text, tenant text, kind text, priority smallint, attempts_max integer,
  lease_us bigint, timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint, needs text, at bigint)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM :schema.submit_fresh(new_id, new_payload, queue, tenant, kind, priority, attempts_max, lease_us, timeout_us,
                               shard_key, cursor, delay_us, run_at, needs, at);
  COMMIT;
  BEGIN
    PERFORM :schema.hint();
  EXCEPTION WHEN OTHERS OR query_canceled THEN
    NULL;
  END;
  COMMIT;
  BEGIN
    PERFORM :schema.tidy();
  EXCEPTION WHEN OTHERS OR query_canceled THEN
    NULL;
  END;
END $$;
