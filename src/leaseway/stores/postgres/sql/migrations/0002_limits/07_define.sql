-- What a limit is, said by code and by people.

-- Definitions outlive a crash, even where the database is told to be forgetful.
CREATE FUNCTION commit_durably() RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF current_setting('synchronous_commit') = 'off' THEN
    PERFORM set_config('synchronous_commit', 'local', true);
  END IF;
END $$;

-- What the code says counts if it is new or differs from what the code said last: a restart does not undo what somebody
-- has changed since. Answers under which fence it was said.
CREATE FUNCTION declare_limits(said json, at bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM refuse_replica();
  PERFORM commit_durably();
  INSERT INTO limits AS known (name, definition, declared, windows, bursts, paces, concurrency, lease_us)
  SELECT name, definition, definition, windows, bursts, paces, concurrency, lease_us
    FROM json_to_recordset(said) AS each (name text, definition jsonb, windows bigint[], bursts bigint[],
                                          paces bigint[], concurrency integer, lease_us bigint)
   ORDER BY name COLLATE "C"
  ON CONFLICT (name) DO UPDATE
    SET version = known.version + 1, definition = excluded.definition, declared = excluded.declared,
        windows = excluded.windows, bursts = excluded.bursts, paces = excluded.paces,
        concurrency = excluded.concurrency, lease_us = excluded.lease_us
  WHERE known.declared IS DISTINCT FROM excluded.declared;
  -- The sooner there is a fence, the sooner buckets are full.
  RETURN fence_since(at);
END $$;

-- What people say is in force at once. What the code said stays, so that saying it again changes nothing.
CREATE FUNCTION change_limit(said json, at bigint DEFAULT NULL) RETURNS integer LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
DECLARE new_version integer;
BEGIN
  PERFORM refuse_replica();
  PERFORM commit_durably();
  PERFORM fence_since(at);
  INSERT INTO limits AS known (name, definition, windows, bursts, paces, concurrency, lease_us)
  SELECT name, definition, windows, bursts, paces, concurrency, lease_us
    FROM json_to_record(said) AS each (name text, definition jsonb, windows bigint[], bursts bigint[], paces bigint[],
                                       concurrency integer, lease_us bigint)
  ON CONFLICT (name) DO UPDATE
    SET version = known.version + 1, definition = excluded.definition, windows = excluded.windows,
        bursts = excluded.bursts, paces = excluded.paces, concurrency = excluded.concurrency,
        lease_us = excluded.lease_us
  RETURNING version INTO new_version;
  RETURN new_version;
END $$;

CREATE FUNCTION forget_limit(limit_name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM refuse_replica();
  PERFORM commit_durably();
  DELETE FROM limits WHERE name = limit_name;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  PERFORM FROM levels WHERE of_limit = limit_name ORDER BY name FOR UPDATE;
  DELETE FROM seats WHERE of_limit = limit_name;
  DELETE FROM levels WHERE of_limit = limit_name;
  RETURN true;
END $$;
