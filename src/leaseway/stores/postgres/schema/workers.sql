-- Workers and their last heartbeats. The table is UNLOGGED: a heartbeat then waits for no disk, and a crash of the server
-- empties a list that every worker restores with its next heartbeat.

-- `beat` is JSON that only the client reads. An empty tenant: the worker works for all tenants.
CREATE UNLOGGED TABLE workers (
  name text COLLATE "C" PRIMARY KEY,
  tenant text COLLATE "C" NOT NULL,
  since bigint NOT NULL,
  seen_at bigint NOT NULL,
  drain_requested boolean NOT NULL DEFAULT false,
  beat text NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 5000);

-- Returns the time, and whether an operator has asked the worker to stop.
CREATE FUNCTION beat_worker(worker text, of_tenant text, uptime_us bigint, facts text, workers_max integer, forget_us bigint,
                            instant bigint, OUT at bigint, OUT drain boolean)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  at := coalesce(instant, now_us());
  UPDATE workers SET seen_at = at, beat = facts WHERE name = worker RETURNING drain_requested INTO drain;
  IF FOUND THEN
    RETURN;
  END IF;
  drain := false;
  DELETE FROM workers WHERE seen_at < at - forget_us;
  INSERT INTO workers (name, tenant, since, seen_at, beat)
  SELECT worker, of_tenant, at - uptime_us, at, facts
   WHERE (SELECT count(*) FROM workers WHERE tenant = of_tenant) < workers_max
  ON CONFLICT (name) DO NOTHING;
END $$;

CREATE FUNCTION remove_worker(worker text) RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
  DELETE FROM workers WHERE name = worker
$$;

CREATE FUNCTION drain_worker(worker text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE workers SET drain_requested = true WHERE name = worker;
  RETURN FOUND;
END $$;

-- What the supervisors of each pool have decided, as JSON that only the client reads: see leaseway.domain.scaling.agreement.
CREATE UNLOGGED TABLE pools (
  name text COLLATE "C" PRIMARY KEY,
  version text NOT NULL,
  record text NOT NULL,
  written_at bigint NOT NULL
) WITH (fillfactor = 50, autovacuum_vacuum_scale_factor = 0, autovacuum_vacuum_threshold = 500);

-- Compare and set. A repeated write finds its own version.
CREATE FUNCTION write_pool(pool text, seen text, new_version text, new_record text, pools_max integer, forget_us bigint,
                           instant bigint)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE at CONSTANT bigint := coalesce(instant, now_us());
BEGIN
  UPDATE pools SET version = new_version, record = new_record, written_at = at
   WHERE name = pool AND version IN (seen, new_version);
  IF FOUND OR seen IS NOT NULL THEN
    RETURN FOUND;
  END IF;
  DELETE FROM pools WHERE written_at < at - forget_us;
  INSERT INTO pools (name, version, record, written_at)
  SELECT pool, new_version, new_record, at WHERE (SELECT count(*) FROM pools) < pools_max
  ON CONFLICT (name) DO NOTHING;
  RETURN FOUND;
END $$;
