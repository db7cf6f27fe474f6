-- API keys and browser sessions. Only hashes of their secrets are stored. (Idempotency keys are in tables.sql.)
--
-- Reading is a function, too, so that a role that may read all other tables cannot read these.

-- `scopes` holds JSON that only the client reads.
CREATE TABLE api_keys (
  id text COLLATE "C" PRIMARY KEY,
  hash text NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  role text NOT NULL,
  scopes text NOT NULL,
  name text NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint,
  revoked_at bigint,
  used_at bigint
);

CREATE TABLE api_sessions (
  hash text COLLATE "C" PRIMARY KEY,
  key text COLLATE "C" NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL
);

CREATE INDEX api_sessions_by_key ON api_sessions (key, created_at);

CREATE INDEX api_sessions_expiring ON api_sessions (expires_at);

-- Returns the hash that is stored under the id: another hash than the new one means that the id is taken, NULL that
-- there are too many keys. `tenant_keys` is set if the tenant has so many valid keys that its quota refuses another one.
CREATE FUNCTION add_api_key(new_id text, new_hash text, wanted_tenant text, new_role text, new_scopes text, new_name text,
                            at bigint, expires bigint, revoked bigint, used bigint,
                            tenant_max integer, keys_max integer, forget_us bigint, forget_max integer, instant bigint,
                            OUT kept text, OUT tenant_keys bigint)
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  added_at CONSTANT bigint := coalesce(instant, now_us());
  before CONSTANT bigint := added_at - forget_us;
BEGIN
  kept := (SELECT hash FROM api_keys WHERE id = new_id);
  IF kept IS NOT NULL THEN
    PERFORM await_replication();
    RETURN;
  END IF;
  IF tenant_max IS NOT NULL THEN
    -- Two transactions must not both find the last free place.
    PERFORM pg_advisory_xact_lock(hashtext('leaseway.keys'), hashtext(wanted_tenant));
    tenant_keys := (SELECT count(*) FROM api_keys WHERE tenant = wanted_tenant AND revoked_at IS NULL
                       AND (expires_at IS NULL OR expires_at > added_at));
    IF tenant_keys >= tenant_max THEN
      RETURN;
    END IF;
    tenant_keys := NULL;
    DELETE FROM api_keys WHERE id IN (
      SELECT id FROM api_keys WHERE tenant = wanted_tenant AND (revoked_at IS NOT NULL OR expires_at <= added_at)
       ORDER BY created_at DESC, id DESC OFFSET tenant_max);
  END IF;
  DELETE FROM api_keys WHERE id IN (
    SELECT id FROM api_keys WHERE expires_at <= before OR revoked_at <= before LIMIT forget_max
  );
  IF (SELECT count(*) FROM api_keys) >= keys_max THEN
    RETURN;
  END IF;
  INSERT INTO api_keys (id, hash, tenant, role, scopes, name, created_at, expires_at, revoked_at, used_at)
  VALUES (new_id, new_hash, wanted_tenant, new_role, new_scopes, new_name, at, expires, revoked, used)
  ON CONFLICT (id) DO NOTHING;
  IF NOT FOUND THEN
    -- Another transaction has added a key with the same id; the first one is kept.
    PERFORM await_replication();
  END IF;
  kept := (SELECT hash FROM api_keys WHERE id = new_id);
END $$;

CREATE FUNCTION find_api_key(key_id text) RETURNS SETOF api_keys LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
  SELECT * FROM api_keys WHERE id = key_id
$$;

CREATE FUNCTION list_api_keys(wanted_tenant text, most integer) RETURNS SETOF api_keys LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
  SELECT * FROM api_keys WHERE wanted_tenant IS NULL OR tenant = wanted_tenant ORDER BY id LIMIT most
$$;

CREATE FUNCTION revoke_api_key(key_id text, instant bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE api_keys SET revoked_at = coalesce(instant, now_us()) WHERE id = key_id AND revoked_at IS NULL;
  RETURN FOUND OR await_replication();
END $$;

-- Let a key expire at this time, unless it expires earlier.
CREATE FUNCTION expire_api_key(key_id text, at bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE api_keys SET expires_at = least(expires_at, at) WHERE id = key_id;
  RETURN FOUND;
END $$;

-- Record when keys were used last. Rows are locked in the order of ids, so that two transactions cannot deadlock.
CREATE FUNCTION touch_api_keys(key_ids text[], used bigint[]) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
  WITH sent AS (SELECT * FROM unnest(key_ids, used) AS sent (id, at)),
       mine AS (SELECT id FROM api_keys WHERE id = ANY (key_ids) ORDER BY id FOR UPDATE)
  UPDATE api_keys SET used_at = greatest(used_at, sent.at) FROM sent, mine
   WHERE api_keys.id = sent.id AND mine.id = sent.id
$$;

CREATE FUNCTION add_api_session(new_hash text, key_id text, at bigint, expires bigint,
                                sessions_max integer, forget_max integer, instant bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM api_sessions WHERE hash IN (
    SELECT hash FROM api_sessions WHERE expires_at <= coalesce(instant, now_us()) LIMIT forget_max
       FOR UPDATE SKIP LOCKED
  );
  DELETE FROM api_sessions WHERE hash IN (
    SELECT hash FROM api_sessions WHERE key = key_id AND hash <> new_hash
     ORDER BY created_at DESC, hash DESC OFFSET sessions_max - 1
  );
  INSERT INTO api_sessions (hash, key, created_at, expires_at) VALUES (new_hash, key_id, at, expires)
  ON CONFLICT (hash) DO NOTHING;
  IF NOT FOUND THEN
    PERFORM await_replication();
  END IF;
END $$;

CREATE FUNCTION find_api_session(session_hash text) RETURNS SETOF api_sessions LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
  SELECT * FROM api_sessions WHERE hash = session_hash
$$;

CREATE FUNCTION end_api_session(session_hash text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM api_sessions WHERE hash = session_hash;
  RETURN FOUND OR await_replication();
END $$;
