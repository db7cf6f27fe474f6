-- One job without a key, by the shortest way: its lane, its two rows and its count in one statement.
CREATE OR REPLACE FUNCTION submit_one(
  new_id text, new_payload text, queue text, tenant text, kind text, priority smallint, attempts_max integer,
  lease_us bigint, timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint,
  needs text DEFAULT '', at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
  instant bigint := coalesce(at, now_us());
  starts_at bigint := coalesce(run_at, instant + delay_us);
  is_ready integer := (starts_at <= instant)::integer;
  is_stored boolean;
BEGIN
  FOR try IN 1 .. 3 LOOP
    WITH lane AS MATERIALIZED (
           SELECT lanes.id FROM lanes WHERE lanes.queue = queue AND lanes.tenant = tenant AND lanes.needs = needs),
         body AS (
           INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload)
           SELECT new_id, instant, lease_us, timeout_us, attempts_max, kind, shard_key, new_payload FROM lane
           ON CONFLICT DO NOTHING -- a known id was submitted before
           RETURNING 1),
         job AS (
           INSERT INTO jobs (id, lane, stage, priority, run_at, cursor)
           SELECT new_id, lane.id, 1 - is_ready, priority, starts_at, cursor FROM lane CROSS JOIN body)
    INSERT INTO lane_changes (lane, ready, scheduled)
    SELECT lane.id, is_ready, 1 - is_ready FROM lane CROSS JOIN body;
    is_stored := FOUND;
    EXIT WHEN is_stored;
    IF EXISTS (SELECT 1 FROM payloads WHERE payloads.id = new_id) THEN
      RETURN;
    END IF;
    PERFORM lane_of(queue, tenant, needs); -- the first job that this lane sees
  END LOOP;
  IF NOT is_stored THEN
    RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = format('job %s was in the way of its own repetitions', new_id);
  END IF;
  -- Looked up after the insert, and not before: whoever finishes it meanwhile has then committed. A first try is looked
  -- up as well: it may be stuck on its way until its repetition has come, run and gone.
  IF EXISTS (SELECT 1 FROM history WHERE history.id = new_id AND history.finished_at > instant - 86400000000) THEN
    PERFORM withdraw(ARRAY[new_id]);
  END IF;
END $$;

-- Jobs without keys that differ in nothing but their payloads, which is how they come when they are many: one lane, and
-- nothing to be read from JSON and joined again.
CREATE OR REPLACE FUNCTION submit_alike(
  new_ids text[], new_payloads text[], queue text, tenant text, kind text, priority smallint, attempts_max integer,
  lease_us bigint, timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint,
  needs text DEFAULT '', at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
#variable_conflict use_variable
DECLARE
  instant bigint := coalesce(at, now_us());
  starts_at bigint := coalesce(run_at, instant + delay_us);
  is_ready integer := (starts_at <= instant)::integer;
  has_lane boolean;
  stored text[];
  smallest text;
  largest text;
BEGIN
  LOOP -- twice at most: a lane stays for ever
    WITH lane AS MATERIALIZED (
           SELECT lanes.id FROM lanes WHERE lanes.queue = queue AND lanes.tenant = tenant AND lanes.needs = needs),
         body AS (
           INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload)
           SELECT sent.id, instant, lease_us, timeout_us, attempts_max, kind, shard_key, sent.payload
             FROM lane CROSS JOIN unnest(new_ids, new_payloads) AS sent (id, payload)
           ON CONFLICT DO NOTHING -- a known id was submitted before
           RETURNING id),
         job AS (
           INSERT INTO jobs (id, lane, stage, priority, run_at, cursor)
           SELECT body.id, lane.id, 1 - is_ready, priority, starts_at, cursor FROM lane CROSS JOIN body
           RETURNING id),
         counted AS (
           INSERT INTO lane_changes (lane, ready, scheduled)
           SELECT lane.id, is_ready * many, (1 - is_ready) * many
             FROM lane CROSS JOIN (SELECT count(*)::integer AS many FROM job) AS jobs WHERE many > 0)
    SELECT EXISTS (SELECT 1 FROM lane), array_agg(id), min(id), max(id) INTO has_lane, stored, smallest, largest FROM job;
    EXIT WHEN has_lane;
    PERFORM lane_of(queue, tenant, needs); -- the first jobs that this lane sees
  END LOOP;
  -- After the insert, and within the range first: as `keep_jobs` does.
  IF EXISTS (SELECT 1 FROM history WHERE history.finished_at > instant - 86400000000
                AND history.id >= smallest AND history.id <= largest) THEN
    PERFORM withdraw(finished_among(stored, instant));
  END IF;
END $$;

-- What workers of the version before call. It looks now, as every try must; it goes with the next version.
CREATE OR REPLACE FUNCTION submit_fresh(
  new_id text, new_payload text, queue text, tenant text, kind text, priority smallint, attempts_max integer,
  lease_us bigint, timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint, needs text, at bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM submit_one(new_id, new_payload, queue, tenant, kind, priority, attempts_max, lease_us, timeout_us, shard_key,
                     cursor, delay_us, run_at, needs, at);
END $$;

-- One job, and when it is stored, the hint: in one round trip, but not in one transaction, because a NOTIFY makes its own
-- transaction wait in line with every other that has one. It may commit on its way because it has neither rights nor
-- settings of its own; so it names the schema. The job is stored with its first COMMIT. What fails after that is passed
-- over where it can be; but the second COMMIT may fail, too, and then the caller must know that he does not know.
CREATE OR REPLACE PROCEDURE submit_one_and_ring(
  new_id text, new_payload text, queue text, tenant text, kind text, priority smallint, attempts_max integer,
  lease_us bigint, timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint, needs text, at bigint)
LANGUAGE plpgsql AS $$
BEGIN
  PERFORM :schema.submit_one(new_id, new_payload, queue, tenant, kind, priority, attempts_max, lease_us, timeout_us,
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
