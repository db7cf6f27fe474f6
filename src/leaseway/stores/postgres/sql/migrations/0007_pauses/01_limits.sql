-- Limits that somebody has paused: nothing is granted until somebody resumes them. The definition says so, and leaves it
-- out where it is not so.
ALTER TYPE sizing ADD ATTRIBUTE is_paused boolean;

CREATE OR REPLACE FUNCTION sizing_of(limit_name text) RETURNS sizing LANGUAGE plpgsql AS $$
DECLARE sized sizing;
BEGIN
  SELECT windows, bursts, paces, concurrency, lease_us, definition ? 'paused' INTO sized FROM limits WHERE name = limit_name;
  RETURN sized;
END $$;

-- As before, with one more reason: -2 for a limit that is paused.
CREATE OR REPLACE FUNCTION hindrance(level levels, sized sizing, cost bigint, least_count bigint, instant bigint,
                          OUT wait_us bigint, OUT reason integer, OUT units bigint) LANGUAGE plpgsql AS $$
DECLARE
  room_us bigint;
  needed_us bigint;
  free bigint;
  first_until bigint;
BEGIN
  IF sized.is_paused THEN
    wait_us := 5000000;
    reason := -2;
    units := 0;
    RETURN;
  END IF;
  wait_us := level.blocked_until - instant;
  reason := 0;
  units := 1000000000;
  FOR place IN 1 .. cardinality(level.windows) LOOP
    room_us := us(sized.bursts[place] * level.paces[place]) - greatest(level.tats[place] - instant, 0);
    -- Below zero nothing passes, and there is a wait.
    units := least(units, greatest(room_us, 0) * 1000 / (cost * level.paces[place]));
    needed_us := us(least_count * cost * level.paces[place]) - room_us;
    IF needed_us > wait_us THEN
      wait_us := needed_us;
      reason := place;
    END IF;
  END LOOP;
  IF sized.concurrency IS NOT NULL THEN
    SELECT sized.concurrency - coalesce(sum(count), 0), min(until) INTO free, first_until FROM seats
     WHERE of_limit = level.of_limit AND name = level.name AND until > instant AND since = level.since;
    units := least(units, free);
    -- After a fence nobody sits down, until those who sat before have said so again.
    needed_us := level.since + 10000000 - instant;
    IF free < least_count THEN
      -- Nobody knows when a seat is left, but for the time at which its holder is thought dead.
      needed_us := greatest(needed_us, greatest(least(first_until - instant, 500000), 1));
    END IF;
    IF needed_us > wait_us THEN
      wait_us := needed_us;
      reason := -1;
    END IF;
  END IF;
END $$;

-- As before, but a new release of the code does not resume what was paused.
CREATE OR REPLACE FUNCTION declare_limits(said json, at bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
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
    SET version = known.version + 1,
        definition = excluded.definition || CASE WHEN known.definition ? 'paused' THEN '{"paused": true}' ELSE '{}' END::jsonb,
        declared = excluded.declared,
        windows = excluded.windows, bursts = excluded.bursts, paces = excluded.paces,
        concurrency = excluded.concurrency, lease_us = excluded.lease_us
  WHERE known.declared IS DISTINCT FROM excluded.declared;
  -- The sooner there is a fence, the sooner buckets are full.
  RETURN fence_since(at);
END $$;

-- What people say, if nobody has said something else since they looked; 0: if there is none yet.
CREATE FUNCTION change_limit_from(said json, expected integer, at bigint DEFAULT NULL) RETURNS integer LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  present integer;
  new_version integer;
BEGIN
  SELECT version INTO present FROM limits WHERE name = said ->> 'name' FOR UPDATE;
  PERFORM refuse_stale('limit ' || (said ->> 'name'), coalesce(present, 0), expected);
  new_version := change_limit(said, at);
  -- Whoever defines it in the same moment was not there to be locked.
  PERFORM refuse_stale('limit ' || (said ->> 'name'), new_version - 1, expected);
  RETURN new_version;
END $$;

CREATE FUNCTION refuse_stale(what text, present integer, expected integer) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF present <> expected THEN
    RAISE EXCEPTION '%', what USING ERRCODE = 'LW004', DETAIL = present::text;
  END IF;
END $$;
