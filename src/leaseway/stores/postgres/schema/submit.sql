-- Submitting jobs.
--
-- `submit` takes jobs as arrays. The options that several jobs share are sent once, as a spec; `spec_numbers` says
-- which spec belongs to each job, counting from 1. `submit_one` and `submit_uniform` are faster paths for jobs without
-- idempotency keys: one job, and many jobs that differ only in their payloads.

-- Those of these jobs that finished within the last day. A submission can be repeated for that long.
CREATE FUNCTION recently_finished(ids text[], instant bigint) RETURNS text[] LANGUAGE plpgsql STRICT AS $$
DECLARE
  recent bigint := instant - 86400000000;
  smallest text := (SELECT min(id COLLATE "C") FROM unnest(ids) AS sent (id));
  largest text := (SELECT max(id COLLATE "C") FROM unnest(ids) AS sent (id));
BEGIN
  -- Ids grow with time, so finished jobs rarely fall into the range of new ids, and one range scan settles the
  -- question.
  IF NOT EXISTS (SELECT 1 FROM history WHERE finished_at > recent AND id >= smallest AND id <= largest) THEN
    RETURN '{}';
  END IF;
  RETURN (SELECT coalesce(array_agg(id), '{}') FROM history WHERE finished_at > recent AND id = ANY (ids));
END $$;

-- Raise an error if one of these ids belongs to a job of another tenant. Called if some of the ids are known: for the
-- same tenant that is a repeated submission, for another one the new job would be acknowledged and not stored.
CREATE FUNCTION refuse_foreign_ids(ids text[], tenants text[], instant bigint) RETURNS void LANGUAGE plpgsql
SET enable_nestloop = on SET enable_hashjoin = off SET enable_mergejoin = off AS $$
DECLARE foreign_id text;
BEGIN
  SELECT sent.id INTO foreign_id
    FROM unnest(ids, tenants) AS sent (id, tenant)
    CROSS JOIN LATERAL (
           SELECT lane FROM jobs WHERE jobs.id = sent.id
           UNION ALL
           SELECT lane FROM history WHERE history.id = sent.id AND finished_at > instant - 86400000000) AS known
    JOIN lanes ON lanes.id = known.lane AND lanes.tenant <> sent.tenant
   LIMIT 1;
  IF FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'LW005', MESSAGE = format(
      'id: %s belongs to a job of another tenant; nothing was stored; submit the job with a new id', foreign_id);
  END IF;
END $$;

-- Jobs are joined with their specs by hash: nested loops over thousands of them would take their square.
CREATE FUNCTION store_jobs(ids text[], payloads text[], spec_numbers integer[], specs json, instant bigint) RETURNS void
LANGUAGE plpgsql SET enable_hashjoin = on SET enable_nestloop = off AS $$
DECLARE
  parsed jsonb;
  new_ids text[];
  finished text[];
BEGIN
  WITH read AS MATERIALIZED (
         SELECT *
           FROM ROWS FROM (json_to_recordset(specs) AS (
                  queue text, tenant text, kind text, priority smallint, attempts_max integer, lease_us bigint,
                  timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint, needs text,
                  trace text))
                WITH ORDINALITY AS each (queue, tenant, kind, priority, attempts_max, lease_us, timeout_us,
                                         shard_key, cursor, delay_us, run_at, needs, trace, n)
          WHERE n = ANY (spec_numbers)
          -- Every transaction creates lanes in this order, so that two of them cannot deadlock.
          ORDER BY queue COLLATE "C", tenant COLLATE "C", needs COLLATE "C"),
       spec AS MATERIALIZED (
         SELECT find_or_create_lane(queue, tenant, coalesce(needs, '')) AS lane,
                coalesce(run_at, instant + delay_us) AS starts_at, read.* FROM read),
       sent AS MATERIALIZED (
         SELECT * FROM unnest(ids, payloads, spec_numbers) WITH ORDINALITY AS sent (id, payload, n, place)),
       bodies AS (
         INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload, trace)
         SELECT id, instant, lease_us, timeout_us, attempts_max, kind, shard_key, payload, trace
           FROM sent JOIN spec USING (n)
         -- A known id is a repeated submission; it changes nothing.
         ON CONFLICT (id) DO NOTHING RETURNING id, payload),
       stored AS (
         INSERT INTO jobs (id, lane, state, priority, run_at, cursor)
         SELECT id, lane, CASE WHEN starts_at > instant THEN 'scheduled'::job_state ELSE 'ready' END, priority, starts_at,
                cursor
           FROM bodies JOIN sent USING (id) JOIN spec USING (n) ORDER BY place
         ON CONFLICT (id) DO NOTHING -- the same id twice in one call
         RETURNING id, lane, state, cursor),
       counted AS (
         INSERT INTO lane_changes (lane, ready, scheduled, bytes)
         SELECT lane, count(*) FILTER (WHERE state = 'ready'), count(*) FILTER (WHERE state = 'scheduled'),
                sum(octet_length(bodies.payload) + coalesce(octet_length(cursor), 0))
           FROM stored JOIN bodies USING (id) GROUP BY lane)
  SELECT array_agg(id) INTO new_ids FROM stored;
  IF new_ids IS NULL THEN
    PERFORM await_replication();
  END IF;

  -- This lookup must follow the insert: a transaction that finishes one of these jobs meanwhile has committed by then.
  finished := recently_finished(new_ids, instant);
  IF finished <> '{}' OR cardinality(new_ids) IS DISTINCT FROM cardinality(ids) THEN
    parsed := specs; -- elements of json are found by parsing all of it, those of jsonb are not
    PERFORM refuse_foreign_ids(
      ids, ARRAY(SELECT parsed -> (n - 1) ->> 'tenant' FROM unnest(spec_numbers) WITH ORDINALITY AS sent (n, place)
                  ORDER BY place), instant);
    PERFORM delete_stored_jobs(finished);
  END IF;
END $$;

-- Undo what this transaction has stored for these ids.
CREATE FUNCTION delete_stored_jobs(ids text[]) RETURNS void LANGUAGE sql AS $$
  WITH gone AS (DELETE FROM jobs WHERE id = ANY (ids) RETURNING id, lane, state, cursor),
       bodies AS (DELETE FROM payloads WHERE id = ANY (ids) RETURNING id, payload),
       counted AS (
         INSERT INTO lane_changes (lane, bytes)
         SELECT lane, -sum(octet_length(payload) + coalesce(octet_length(cursor), 0)) FROM gone JOIN bodies USING (id) GROUP BY lane)
  SELECT count_moves(array_agg(lane), array_agg(state), array_agg(NULL::job_state)) FROM gone HAVING count(*) > 0
$$;

-- Reserve the idempotency keys that are free, and say for each submission which job answers it: the job itself, or the
-- job that its key already names. `is_new` says whether the job has to be stored. Both are in the order of the ids.
CREATE FUNCTION reserve_keys(ids text[], tenants text[], keys text[], fingerprints text[], keep_us bigint[],
                             accepts_conflicts boolean, instant bigint, OUT answers text[], OUT is_new boolean[])
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  old_ids text[] := recently_finished(ids, instant) || ARRAY(SELECT id FROM jobs WHERE id = ANY (ids));
  -- Sets of ids as the keys of jsonb objects, which are found by binary search whatever the planner expects.
  known jsonb := coalesce((SELECT jsonb_object_agg(id, true) FROM unnest(old_ids) AS old (id)), '{}');
  reserved jsonb;
  conflict record;
BEGIN
  IF old_ids <> '{}' THEN
    PERFORM refuse_foreign_ids(ids, tenants, instant);
  END IF;
  WITH sent AS (
         SELECT * FROM unnest(ids, tenants, keys, fingerprints, keep_us) WITH ORDINALITY
                       AS sent (id, tenant, key, fingerprint, keep_us, place)
          WHERE key IS NOT NULL AND keep_us > 0 AND NOT known ? id),
       -- Every transaction reserves keys in this order, so that two of them cannot deadlock.
       first_of_key AS (
         SELECT DISTINCT ON (tenant COLLATE "C", key COLLATE "C") *
           FROM sent ORDER BY tenant COLLATE "C", key COLLATE "C", place),
       kept AS (
         INSERT INTO idempotency_keys AS stored (tenant, key, job, fingerprint, expires_at)
         SELECT tenant, key, id, fingerprint, instant + keep_us FROM first_of_key
         -- Only an expired key may be replaced.
         ON CONFLICT (tenant, key) DO UPDATE
            SET job = excluded.job, fingerprint = excluded.fingerprint, expires_at = excluded.expires_at
          WHERE stored.expires_at <= instant
         RETURNING job)
  SELECT coalesce(jsonb_object_agg(job, true), '{}') INTO reserved FROM kept;

  IF NOT accepts_conflicts THEN
    SELECT * INTO conflict FROM jobs_by_key(ids, tenants, keys, fingerprints, reserved, known, instant) AS found
     WHERE found.is_conflict ORDER BY found.place LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'LW001', MESSAGE = format(
        'key %L of tenant %L names job %s, which was submitted with another kind or other arguments; '
        'use a new key for a new job', keys[conflict.place], tenants[conflict.place], conflict.job);
    END IF;
  END IF;

  SELECT array_agg(coalesce(job, id) ORDER BY place),
         array_agg(NOT known ? id AND (job IS NULL OR reserved ? id) ORDER BY place)
    INTO answers, is_new FROM jobs_by_key(ids, tenants, keys, fingerprints, reserved, known, instant);
END $$;

-- For each submission: the job that its key names, if the key is in force. A key that was reserved by a job of this call
-- applies to the submissions after it.
CREATE FUNCTION jobs_by_key(ids text[], tenants text[], keys text[], fingerprints text[], reserved jsonb, known jsonb,
                            instant bigint)
RETURNS TABLE (place bigint, id text, job text, is_conflict boolean) LANGUAGE plpgsql
SET enable_nestloop = on SET enable_hashjoin = off SET enable_mergejoin = off AS $$
#variable_conflict use_column
DECLARE
  -- Of an id that was sent twice, the last pair of an object counts, which is the first place.
  places jsonb := (SELECT jsonb_object_agg(id, place ORDER BY place DESC) FROM unnest(ids) WITH ORDINALITY AS sent (id, place)
                    WHERE reserved ? id);
BEGIN
  RETURN QUERY
  SELECT sent.place, sent.id, stored.job, stored.fingerprint <> sent.fingerprint
    FROM unnest(ids, tenants, keys, fingerprints) WITH ORDINALITY AS sent (id, tenant, key, fingerprint, place)
    LEFT JOIN idempotency_keys AS stored
      ON stored.tenant = sent.tenant AND stored.key = sent.key AND stored.expires_at > instant AND NOT known ? sent.id
     AND (NOT reserved ? stored.job OR sent.place >= (places ->> stored.job)::bigint);
END $$;

-- Store jobs that may have idempotency keys. Returns the job that answers each submission, in their order; NULL if
-- there are no keys, which means that every job answers itself.
CREATE FUNCTION store_keyed_jobs(ids text[], payloads text[], spec_numbers integer[], specs json, keys text[],
                                 fingerprints text[], accepts_conflicts boolean, instant bigint)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  parsed jsonb;
  reserved record;
  new_ids text[];
  new_payloads text[];
  new_spec_numbers integer[];
BEGIN
  IF keys IS NULL THEN
    PERFORM store_jobs(ids, payloads, spec_numbers, specs, instant);
    RETURN NULL;
  END IF;
  parsed := specs; -- elements of json are found by parsing all of it, those of jsonb are not
  SELECT answers, is_new INTO reserved
    FROM (SELECT array_agg(parsed -> (n - 1) ->> 'tenant' ORDER BY place) AS tenants,
                 array_agg((parsed -> (n - 1) ->> 'key_keep_us')::bigint ORDER BY place) AS keeps
            FROM unnest(spec_numbers) WITH ORDINALITY AS sent (n, place)) AS submission
   CROSS JOIN LATERAL reserve_keys(ids, tenants, keys, fingerprints, keeps, accepts_conflicts, instant);
  SELECT array_agg(id ORDER BY place), array_agg(payload ORDER BY place), array_agg(n ORDER BY place)
    INTO new_ids, new_payloads, new_spec_numbers
    FROM unnest(ids, payloads, spec_numbers, reserved.is_new) WITH ORDINALITY AS sent (id, payload, n, is_new, place)
   WHERE is_new;
  IF new_ids IS NOT NULL THEN
    PERFORM store_jobs(new_ids, new_payloads, new_spec_numbers, specs, instant);
  ELSE
    PERFORM await_replication();
  END IF;
  RETURN reserved.answers;
END $$;

CREATE FUNCTION submit(ids text[], payloads text[], spec_numbers integer[], specs json, keys text[] DEFAULT NULL,
                       fingerprints text[] DEFAULT NULL, accepts_conflicts boolean DEFAULT false, at bigint DEFAULT NULL)
RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
DECLARE instant bigint := coalesce(at, now_us());
BEGIN
  RETURN store_keyed_jobs(ids, payloads, spec_numbers, specs, keys, fingerprints, accepts_conflicts, instant);
END $$;

-- One job without a key: its lane, its two rows and its count in one statement.
CREATE FUNCTION submit_one(
  new_id text, new_payload text, queue text, tenant text, kind text, priority smallint, attempts_max integer,
  lease_us bigint, timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint,
  needs text DEFAULT '', at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
#variable_conflict use_variable
DECLARE
  instant bigint := coalesce(at, now_us());
  starts_at bigint := coalesce(run_at, instant + delay_us);
  is_ready integer := (starts_at <= instant)::integer;
  state job_state := CASE WHEN starts_at <= instant THEN 'ready'::job_state ELSE 'scheduled' END;
  is_stored boolean;
BEGIN
  FOR try IN 1 .. 3 LOOP
    WITH lane AS MATERIALIZED (
           SELECT lanes.id FROM lanes WHERE lanes.queue = queue AND lanes.tenant = tenant AND lanes.needs = needs),
         body AS (
           INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload)
           SELECT new_id, instant, lease_us, timeout_us, attempts_max, kind, shard_key, new_payload FROM lane
           ON CONFLICT DO NOTHING -- a known id is a repeated submission
           RETURNING 1),
         job AS (
           INSERT INTO jobs (id, lane, state, priority, run_at, cursor)
           SELECT new_id, lane.id, state, priority, starts_at, cursor FROM lane CROSS JOIN body)
    INSERT INTO lane_changes (lane, ready, scheduled, bytes)
    SELECT lane.id, is_ready, 1 - is_ready, octet_length(new_payload) + coalesce(octet_length(cursor), 0)
      FROM lane CROSS JOIN body;
    is_stored := FOUND;
    EXIT WHEN is_stored;
    IF EXISTS (SELECT 1 FROM payloads WHERE payloads.id = new_id) THEN
      PERFORM refuse_foreign_ids(ARRAY[new_id], ARRAY[tenant], instant);
      PERFORM await_replication();
      RETURN;
    END IF;
    PERFORM find_or_create_lane(queue, tenant, needs); -- this is the first job of its lane
  END LOOP;
  IF NOT is_stored THEN
    RAISE EXCEPTION USING ERRCODE = '40001',
      MESSAGE = format('job %s conflicts with repetitions of its own submission', new_id);
  END IF;
  -- This lookup must follow the insert: a transaction that finishes the job meanwhile has committed by then. It is
  -- needed for first tries, too, because a delayed first try may arrive after its repetition has run and finished.
  IF EXISTS (SELECT 1 FROM history WHERE history.id = new_id AND history.finished_at > instant - 86400000000) THEN
    PERFORM refuse_foreign_ids(ARRAY[new_id], ARRAY[tenant], instant);
    PERFORM delete_stored_jobs(ARRAY[new_id]);
  END IF;
END $$;

-- Jobs without keys that differ only in their payloads, which is the usual form of a bulk submission: one lane, and no
-- specs to decode and join.
CREATE FUNCTION submit_uniform(
  new_ids text[], new_payloads text[], queue text, tenant text, kind text, priority smallint, attempts_max integer,
  lease_us bigint, timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint,
  needs text DEFAULT '', at bigint DEFAULT NULL)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
#variable_conflict use_variable
DECLARE
  instant bigint := coalesce(at, now_us());
  starts_at bigint := coalesce(run_at, instant + delay_us);
  is_ready integer := (starts_at <= instant)::integer;
  state job_state := CASE WHEN starts_at <= instant THEN 'ready'::job_state ELSE 'scheduled' END;
  has_lane boolean;
  stored text[];
  smallest text;
  largest text;
BEGIN
  LOOP -- at most twice, because no lane is deleted while this transaction holds its lock on lane_changes
    WITH lane AS MATERIALIZED (
           SELECT lanes.id FROM lanes WHERE lanes.queue = queue AND lanes.tenant = tenant AND lanes.needs = needs),
         body AS (
           INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload)
           SELECT sent.id, instant, lease_us, timeout_us, attempts_max, kind, shard_key, sent.payload
             FROM lane CROSS JOIN unnest(new_ids, new_payloads) AS sent (id, payload)
           ON CONFLICT DO NOTHING -- a known id is a repeated submission
           RETURNING id, octet_length(payload) + coalesce(octet_length(cursor), 0) AS bytes),
         job AS (
           INSERT INTO jobs (id, lane, state, priority, run_at, cursor)
           SELECT body.id, lane.id, state, priority, starts_at, cursor FROM lane CROSS JOIN body
           RETURNING id),
         counted AS (
           INSERT INTO lane_changes (lane, ready, scheduled, bytes)
           SELECT lane.id, is_ready * many, (1 - is_ready) * many, bytes
             FROM lane CROSS JOIN (SELECT count(*)::integer AS many, sum(body.bytes) AS bytes FROM body) AS jobs
            WHERE many > 0)
    SELECT EXISTS (SELECT 1 FROM lane), array_agg(id), min(id), max(id) INTO has_lane, stored, smallest, largest FROM job;
    EXIT WHEN has_lane;
    PERFORM find_or_create_lane(queue, tenant, needs); -- these are the first jobs of their lane
  END LOOP;
  IF stored IS NULL THEN
    PERFORM await_replication();
  END IF;
  -- After the insert, and by range first, for the reasons given in store_jobs and recently_finished.
  IF cardinality(stored) IS DISTINCT FROM cardinality(new_ids)
     OR EXISTS (SELECT 1 FROM history WHERE history.finished_at > instant - 86400000000
                   AND history.id >= smallest AND history.id <= largest) THEN
    PERFORM refuse_foreign_ids(new_ids, array_fill(tenant, ARRAY[cardinality(new_ids)]), instant);
    PERFORM delete_stored_jobs(recently_finished(stored, instant));
  END IF;
END $$;

-- For clients in any language, inside their own transactions:
--   SELECT leaseway.submit_job('send', '{"to": "ada@example.org"}', key => 'welcome:42');

-- 26 characters that sort by time: 10 for the millisecond, 16 random.
CREATE FUNCTION new_job_id() RETURNS text LANGUAGE sql VOLATILE AS $$
  SELECT string_agg(substr('0123456789abcdefghjkmnpqrstvwxyz', digit + 1, 1), '' ORDER BY place)
    FROM (SELECT place, (millisecond >> (5 * (10 - place)) & 31)::integer AS digit
            FROM (SELECT now_us() / 1000 AS millisecond OFFSET 0) AS now CROSS JOIN generate_series(1, 10) AS place
          UNION ALL
          SELECT 10 + place, get_byte(uuid_send(gen_random_uuid()), 9 + place % 6) & 31 FROM generate_series(1, 16) AS place)
         AS digits
$$;

CREATE FUNCTION refuse_unless(is_right boolean, field text, rule text, given anyelement) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF is_right IS NOT TRUE THEN
    RAISE EXCEPTION USING ERRCODE = 'LW002', MESSAGE = format('%s: %s (is %s)', field, rule, coalesce(given::text, 'NULL'));
  END IF;
END $$;

CREATE FUNCTION submit_job(
  kind text, payload json DEFAULT '{}', queue text DEFAULT 'default', tenant text DEFAULT 'default',
  priority integer DEFAULT 0, attempts integer DEFAULT 5, lease interval DEFAULT '15 seconds',
  timeout interval DEFAULT NULL, delay interval DEFAULT NULL, run_at timestamptz DEFAULT NULL, key text DEFAULT NULL,
  key_retention interval DEFAULT '7 days', shard_key text DEFAULT NULL, cursor json DEFAULT NULL, id text DEFAULT NULL,
  needs text DEFAULT '', notify boolean DEFAULT true)
RETURNS text LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  new_id text := coalesce(id, new_job_id());
  fingerprint text := encode(sha256(convert_to(concat(kind, E'\n', payload::jsonb::text), 'UTF8')), 'hex');
  spec json;
BEGIN
  PERFORM refuse_unless(json_typeof(payload) = 'object', 'payload', 'must be a JSON object, the arguments by name', payload);
  PERFORM refuse_unless(octet_length(payload::text) <= 262144, 'payload', 'must have at most 262144 bytes',
                        octet_length(payload::text));
  PERFORM refuse_unless(length(kind) BETWEEN 1 AND 200, 'kind', 'must have 1 to 200 characters', kind);
  PERFORM refuse_unless(length(queue) BETWEEN 1 AND 200, 'queue', 'must have 1 to 200 characters', queue);
  PERFORM refuse_unless(length(tenant) BETWEEN 1 AND 200, 'tenant', 'must have 1 to 200 characters', tenant);
  PERFORM refuse_unless(key IS NULL OR length(key) BETWEEN 1 AND 200, 'key', 'must have 1 to 200 characters', key);
  PERFORM refuse_unless(shard_key IS NULL OR length(shard_key) BETWEEN 1 AND 200, 'shard_key',
                        'must have 1 to 200 characters', shard_key);
  PERFORM refuse_unless(length(new_id) BETWEEN 1 AND 200, 'id', 'must have 1 to 200 characters', id);
  PERFORM refuse_unless(octet_length(needs) <= 1000, 'needs', 'must have at most 1000 bytes', octet_length(needs));
  PERFORM refuse_unless(priority BETWEEN -1000 AND 1000, 'priority', 'must be between -1000 and 1000', priority);
  PERFORM refuse_unless(attempts BETWEEN 1 AND 1000, 'attempts', 'must be between 1 and 1000', attempts);
  PERFORM refuse_unless(lease BETWEEN '1 second' AND '1 day', 'lease', 'must be between 1 second and 1 day', lease);
  PERFORM refuse_unless(timeout IS NULL OR timeout BETWEEN '1 millisecond' AND '100 years', 'timeout',
                        'must be at least a millisecond', timeout);
  PERFORM refuse_unless(delay IS NULL OR delay BETWEEN '0' AND '100 years', 'delay', 'must not be negative', delay);
  PERFORM refuse_unless(run_at IS NULL OR (run_at >= '1970-01-01 00:00Z' AND run_at < '10000-01-01 00:00Z'), 'run_at',
                        'must be in the years 1970 to 9999, in UTC', run_at);
  PERFORM refuse_unless(run_at IS NULL OR delay IS NULL, 'delay', 'cannot be given together with run_at', delay);
  PERFORM refuse_unless(key_retention BETWEEN '0' AND '100 years', 'key_retention', 'must not be negative', key_retention);
  spec := json_build_array(json_build_object(
    'queue', queue, 'tenant', tenant, 'kind', kind, 'priority', priority, 'attempts_max', attempts,
    'lease_us', (extract(epoch FROM lease) * 1000000)::bigint, 'timeout_us', (extract(epoch FROM timeout) * 1000000)::bigint,
    'shard_key', shard_key, 'cursor', cursor::text, 'delay_us', coalesce((extract(epoch FROM delay) * 1000000)::bigint, 0),
    'run_at', (extract(epoch FROM run_at) * 1000000)::bigint,
    'needs', needs, 'key_keep_us', (extract(epoch FROM key_retention) * 1000000)::bigint));
  IF notify THEN
    PERFORM notify_on_commit();
  END IF;
  RETURN (store_keyed_jobs(ARRAY[new_id], ARRAY[payload::text], ARRAY[1], spec, ARRAY[key], ARRAY[fingerprint],
                           false, now_us()))[1];
END $$;
