-- Rate limits and concurrency limits, shared by all workers. leaseway.domain.limits.buckets defines what every column
-- means and what every function decides.
--
-- Definitions are in a normal table. The use of limits is in UNLOGGED tables: a crash or a promotion empties all three
-- of them, so that lost state is always detected, and limits then count as used up. A clean restart keeps them.

CREATE TABLE limits (
  name text COLLATE "C" PRIMARY KEY,
  version integer NOT NULL DEFAULT 1,
  definition jsonb NOT NULL,
  -- What the code declared last; NULL if only operators have defined the limit.
  declared jsonb,
  -- Derived from the definition: the windows in microseconds, and for each its burst and the nanoseconds per permit.
  windows bigint[] NOT NULL,
  bursts bigint[] NOT NULL,
  paces bigint[] NOT NULL,
  concurrency integer,
  lease_us bigint NOT NULL,
  -- Whether the windows are logged (leaseway.domain.limits.sliding_log); `bursts` are then the whole counts.
  is_metered boolean NOT NULL DEFAULT false,
  -- How many calls fail in a row before the circuit breaker opens; NULL: there is none.
  breaker integer
);

-- The state of a circuit breaker: leaseway.domain.limits.breaker.
CREATE TYPE breaker_state AS (
  failures integer,
  failed_at bigint,
  trips integer,
  open_until bigint,
  probe_until bigint,
  number integer
);

-- The buckets of one limit, or of one value of a limit with a field ("maps:{tenant}").
CREATE UNLOGGED TABLE levels (
  name text COLLATE "C" NOT NULL,
  of_limit text COLLATE "C" NOT NULL,
  since bigint NOT NULL DEFAULT -1,
  blocked_until bigint NOT NULL DEFAULT 0,
  percent integer NOT NULL DEFAULT 100,
  generation integer NOT NULL DEFAULT 0,
  slowed_at bigint NOT NULL DEFAULT 0,
  -- Whether there may be rows in in_flight_calls.
  has_calls boolean NOT NULL DEFAULT false,
  -- One element per bucket: its window, theoretical arrival time, next turn of a waiting client, nanoseconds per
  -- permit.
  windows bigint[] NOT NULL DEFAULT '{}',
  tats bigint[] NOT NULL DEFAULT '{}',
  turns bigint[] NOT NULL DEFAULT '{}',
  paces bigint[] NOT NULL DEFAULT '{}',
  -- What calls used of a limit that is logged, one element per window and slice: the window, until when it counts, and how
  -- much.
  used_windows bigint[] NOT NULL DEFAULT '{}',
  used_until bigint[] NOT NULL DEFAULT '{}',
  used_amounts bigint[] NOT NULL DEFAULT '{}',
  breaker breaker_state NOT NULL DEFAULT ROW(0, 0, 0, 0, 0, 0)::breaker_state,
  PRIMARY KEY (of_limit, name)
) WITH (
  -- Few rows that are updated all the time: leave room for new versions on the same page.
  fillfactor = 25, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- An order unrelated to the names: delete_idle_levels visits other levels in it.
CREATE INDEX levels_by_hash ON levels (hashtext(name));

-- The calls that a holder has in flight under a concurrency limit, or what they have reserved of a limit that is logged.
CREATE UNLOGGED TABLE in_flight_calls (
  name text COLLATE "C" NOT NULL,
  of_limit text COLLATE "C" NOT NULL,
  holder text COLLATE "C" NOT NULL,
  count bigint NOT NULL,
  until bigint NOT NULL,
  -- The fence when the calls were recorded.
  since bigint NOT NULL,
  PRIMARY KEY (of_limit, name, holder)
) WITH (
  fillfactor = 50, autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 1000,
  autovacuum_vacuum_cost_delay = 0
);

-- One row: everything before `since` is unknown. The row stores the oid of its own table, so that a restored dump,
-- which has other oids, contains levels but no valid fence.
CREATE UNLOGGED TABLE limiter_fence (
  made_in oid PRIMARY KEY,
  since bigint NOT NULL
);

-- Has a row since the first fence. The table is logged: a crash that empties the others leaves the row, and tells a server
-- that lost the use of its limits from a new one, whose limits were never used.
CREATE TABLE limiter_history (
  has_begun boolean PRIMARY KEY
);

-- A definition as the functions use it.
CREATE TYPE sizing AS (
  windows bigint[],
  bursts bigint[],
  paces bigint[],
  concurrency integer,
  lease_us bigint,
  is_paused boolean,
  is_metered boolean,
  start text, -- 'empty', 'full' or NULL: the level of a bucket without state
  breaker integer
);

-- Definitions survive a crash, even if the database is configured with synchronous_commit = off.
CREATE FUNCTION commit_durably() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
END $$;

-- The unlogged tables do not exist on a replica. After a failover this must not look like a missing schema.
CREATE FUNCTION refuse_replica() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF pg_is_in_recovery() THEN
    RAISE EXCEPTION 'limits are available on the primary only' USING ERRCODE = 'read_only_sql_transaction';
  END IF;
END $$;

CREATE FUNCTION refuse_stale(what text, present integer, expected integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF present <> expected THEN
    RAISE EXCEPTION '%', what USING ERRCODE = 'LW004', DETAIL = present::text;
  END IF;
END $$;

-- The definition in force; all NULL if there is none. It may have changed while the transaction waited for a lock.
CREATE FUNCTION load_sizing(limit_name text) RETURNS sizing LANGUAGE plpgsql AS $$
DECLARE sized sizing;
BEGIN
  SELECT windows, bursts, paces, concurrency, lease_us, definition ? 'paused', is_metered, definition ->> 'start', breaker INTO sized
    FROM limits WHERE name = limit_name;
  RETURN sized;
END $$;

CREATE FUNCTION refuse_unknown(limit_name text, sized sizing) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF sized.windows IS NULL THEN
    RAISE EXCEPTION '%', limit_name USING ERRCODE = 'LW003';
  END IF;
END $$;

CREATE FUNCTION load_sizings(limit_names text[]) RETURNS sizing[] LANGUAGE plpgsql AS $$
DECLARE
  sized sizing;
  sizes sizing[];
BEGIN
  FOR place IN 1 .. cardinality(limit_names) LOOP
    sized := load_sizing(limit_names[place]);
    PERFORM refuse_unknown(limit_names[place], sized);
    sizes[place] := sized;
  END LOOP;
  RETURN sizes;
END $$;

-- The time since when the use of limits is known. If there is no row, the server crashed or was promoted, and this is that
-- time; or it is new, and it is known that nothing was used before: the time lies so far back that every bucket is full.
-- Read it after taking the locks, so that no decision uses a fence that moved during the wait.
CREATE FUNCTION fence_since(at bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  known_since bigint;
  is_new boolean;
BEGIN
  SELECT since INTO known_since FROM limiter_fence WHERE made_in = tableoid;
  IF NOT FOUND THEN
    PERFORM commit_durably();
    INSERT INTO limiter_history (has_begun) VALUES (true) ON CONFLICT DO NOTHING;
    is_new := FOUND;
    INSERT INTO limiter_fence (made_in, since)
    VALUES ('limiter_fence'::regclass, coalesce(at, now_us()) - CASE WHEN is_new THEN 9007199254740 ELSE 0 END)
    ON CONFLICT DO NOTHING;
    SELECT since INTO known_since FROM limiter_fence WHERE made_in = tableoid;
  END IF;
  RETURN known_since;
END $$;

-- Store the definitions of the code. A definition that the code has declared before changes nothing, and a new
-- declaration does not resume a paused limit.
CREATE FUNCTION declare_limits(definitions json, at bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM refuse_replica();
  PERFORM commit_durably();
  INSERT INTO limits AS known (name, definition, declared, windows, bursts, paces, concurrency, lease_us,
                               is_metered, breaker)
  SELECT name, definition, definition, windows, bursts, paces, concurrency, lease_us, is_metered, breaker
    FROM json_to_recordset(definitions) 
         AS each (name text, definition jsonb, windows bigint[], bursts bigint[], paces bigint[],
                  concurrency integer, lease_us bigint, is_metered boolean, breaker integer)
   ORDER BY name COLLATE "C"
  ON CONFLICT (name) DO UPDATE
    SET version = known.version + 1,
        definition = excluded.definition
                     || CASE WHEN known.definition ? 'paused' THEN '{"paused": true}' ELSE '{}' END::jsonb,
        declared = excluded.declared,
        windows = excluded.windows, bursts = excluded.bursts, paces = excluded.paces,
        concurrency = excluded.concurrency, lease_us = excluded.lease_us, is_metered = excluded.is_metered,
        breaker = excluded.breaker
  WHERE known.declared IS DISTINCT FROM excluded.declared;
  -- Buckets fill from the fence on, so create it as early as possible.
  RETURN fence_since(at);
END $$;

-- Store the definition of an operator. The last declaration of the code is kept, so that repeating it changes nothing.
-- With `expected`, the change is refused unless the limit is at this version; 0 means that it must not exist.
CREATE FUNCTION change_limit(new_definition json, expected integer DEFAULT NULL, at bigint DEFAULT NULL) RETURNS integer
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  label text := 'limit ' || (new_definition ->> 'name');
  present integer;
  new_version integer;
BEGIN
  IF expected IS NOT NULL THEN
    SELECT version INTO present FROM limits WHERE name = new_definition ->> 'name' FOR UPDATE;
    PERFORM refuse_stale(label, coalesce(present, 0), expected);
  END IF;
  PERFORM refuse_replica();
  PERFORM commit_durably();
  PERFORM fence_since(at);
  INSERT INTO limits AS known (name, definition, windows, bursts, paces, concurrency, lease_us, is_metered, breaker)
  SELECT name, definition, windows, bursts, paces, concurrency, lease_us, is_metered, breaker
    FROM json_to_record(new_definition) 
         AS each (name text, definition jsonb, windows bigint[], bursts bigint[], paces bigint[],
                  concurrency integer, lease_us bigint, is_metered boolean, breaker integer)
  ON CONFLICT (name) DO UPDATE
    SET version = known.version + 1, definition = excluded.definition, windows = excluded.windows,
        bursts = excluded.bursts, paces = excluded.paces, concurrency = excluded.concurrency,
        lease_us = excluded.lease_us, is_metered = excluded.is_metered, breaker = excluded.breaker
  RETURNING version INTO new_version;
  IF expected IS NOT NULL THEN
    -- A limit that another transaction created at the same time could not be locked above.
    PERFORM refuse_stale(label, new_version - 1, expected);
  END IF;
  RETURN new_version;
END $$;

CREATE FUNCTION forget_limit(limit_name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM refuse_replica();
  PERFORM commit_durably();
  DELETE FROM limits WHERE name = limit_name;
  IF NOT FOUND THEN
    RETURN await_replication();
  END IF;
  PERFORM FROM levels WHERE of_limit = limit_name ORDER BY name FOR UPDATE;
  DELETE FROM in_flight_calls WHERE of_limit = limit_name;
  DELETE FROM levels WHERE of_limit = limit_name;
  RETURN true;
END $$;
