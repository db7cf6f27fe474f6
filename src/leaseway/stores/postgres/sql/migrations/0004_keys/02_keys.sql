-- Who only reads the tables must not see the keys: even looking at them is a function, and a right of its own.

-- The hash that is kept under its id: another one than the new key's says that the id is taken; NULL, that there is no
-- room.
CREATE FUNCTION add_api_key(new_id text, new_hash text, of_tenant text, new_role text, new_scopes text, new_name text,
                            at bigint, expires bigint, revoked bigint, used bigint,
                            keys_max integer, forget_us bigint, forget_max integer, instant bigint)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  kept text := (SELECT hash FROM api_keys WHERE id = new_id);
  before CONSTANT bigint := coalesce(instant, now_us()) - forget_us;
BEGIN
  IF kept IS NOT NULL THEN
    RETURN kept;
  END IF;
  DELETE FROM api_keys WHERE id IN (
    SELECT id FROM api_keys WHERE expires_at <= before OR revoked_at <= before LIMIT forget_max
  );
  IF (SELECT count(*) FROM api_keys) >= keys_max THEN
    RETURN NULL;
  END IF;
  INSERT INTO api_keys (id, hash, tenant, role, scopes, name, created_at, expires_at, revoked_at, used_at)
  VALUES (new_id, new_hash, of_tenant, new_role, new_scopes, new_name, at, expires, revoked, used)
  ON CONFLICT (id) DO NOTHING;
  -- Somebody may have been faster, with the same id: his is the one that is kept.
  RETURN (SELECT hash FROM api_keys WHERE id = new_id);
END $$;

CREATE FUNCTION find_api_key(key_id text) RETURNS SETOF api_keys LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
  SELECT * FROM api_keys WHERE id = key_id
$$;

CREATE FUNCTION list_api_keys(of_tenant text, most integer) RETURNS SETOF api_keys LANGUAGE sql STABLE SECURITY DEFINER
SET search_path FROM CURRENT AS $$
  SELECT * FROM api_keys WHERE of_tenant IS NULL OR tenant = of_tenant ORDER BY id LIMIT most
$$;

CREATE FUNCTION revoke_api_key(key_id text, instant bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE api_keys SET revoked_at = coalesce(instant, now_us()) WHERE id = key_id AND revoked_at IS NULL;
  RETURN FOUND;
END $$;

CREATE FUNCTION expire_api_key(key_id text, at bigint) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE api_keys SET expires_at = least(expires_at, at) WHERE id = key_id;
  RETURN FOUND;
END $$;

-- In the order of ids, so that two who write at once never wait for each other in a circle.
CREATE FUNCTION touch_api_keys(key_ids text[], used bigint[]) RETURNS void LANGUAGE sql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
  WITH sent AS (SELECT * FROM unnest(key_ids, used) AS sent (id, at)),
       mine AS (SELECT id FROM api_keys WHERE id = ANY (key_ids) ORDER BY id FOR UPDATE)
  UPDATE api_keys SET used_at = greatest(used_at, sent.at) FROM sent, mine
   WHERE api_keys.id = sent.id AND mine.id = sent.id
$$;
