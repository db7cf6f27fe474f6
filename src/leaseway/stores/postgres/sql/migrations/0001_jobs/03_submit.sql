-- Many jobs are sent as arrays, and what they have in common as a few specs: `spec_of` says which one is whose.

CREATE FUNCTION lane_of(wanted_queue text, wanted_tenant text, wanted_needs text) RETURNS integer LANGUAGE plpgsql AS $$
DECLARE found_id integer;
BEGIN
  SELECT id INTO found_id FROM lanes WHERE queue = wanted_queue AND tenant = wanted_tenant AND needs = wanted_needs;
  IF found_id IS NULL THEN
    INSERT INTO lanes (queue, tenant, needs) VALUES (wanted_queue, wanted_tenant, wanted_needs) ON CONFLICT DO NOTHING;
    SELECT id INTO found_id FROM lanes WHERE queue = wanted_queue AND tenant = wanted_tenant AND needs = wanted_needs;
  END IF;
  RETURN found_id;
END $$;

-- Which of these jobs have finished? Their submission may be repeated for a day after their end.
CREATE FUNCTION finished_among(ids text[], instant bigint) RETURNS text[] LANGUAGE plpgsql STRICT AS $$
DECLARE
  recent bigint := instant - 86400000000;
  smallest text := (SELECT min(id COLLATE "C") FROM unnest(ids) AS sent (id));
  largest text := (SELECT max(id COLLATE "C") FROM unnest(ids) AS sent (id));
BEGIN
  -- Ids grow with time, so among the finished there is seldom one within the range of new ones.
  IF NOT EXISTS (SELECT 1 FROM history WHERE finished_at > recent AND id >= smallest AND id <= largest) THEN
    RETURN '{}';
  END IF;
  RETURN (SELECT coalesce(array_agg(id), '{}') FROM history WHERE finished_at > recent AND id = ANY (ids));
END $$;

CREATE FUNCTION keep_jobs(ids text[], payloads text[], spec_of integer[], specs json, instant bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  new_ids text[];
  finished text[];
BEGIN
  WITH read AS MATERIALIZED (
         SELECT *
           FROM ROWS FROM (json_to_recordset(specs) AS (
                  queue text, tenant text, kind text, priority smallint, attempts_max integer, lease_us bigint,
                  timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint, needs text))
                WITH ORDINALITY AS each (queue, tenant, kind, priority, attempts_max, lease_us, timeout_us,
                                         shard_key, cursor, delay_us, run_at, needs, n)
          WHERE n = ANY (spec_of)
          -- New lanes are opened in one order by everybody, or two submitters could wait for each other.
          ORDER BY queue COLLATE "C", tenant COLLATE "C", needs COLLATE "C"),
       spec AS MATERIALIZED (
         SELECT lane_of(queue, tenant, coalesce(needs, '')) AS lane, coalesce(run_at, instant + delay_us) AS starts_at,
                read.* FROM read),
       sent AS MATERIALIZED (
         SELECT * FROM unnest(ids, payloads, spec_of) WITH ORDINALITY AS sent (id, payload, n, place)),
       bodies AS (
         INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload)
         SELECT id, instant, lease_us, timeout_us, attempts_max, kind, shard_key, payload
           FROM sent JOIN spec USING (n)
         -- A known id was submitted before: nothing happens.
         ON CONFLICT (id) DO NOTHING RETURNING id),
       stored AS (
         INSERT INTO jobs (id, lane, stage, priority, run_at, cursor)
         SELECT id, lane, CASE WHEN starts_at > instant THEN 1 ELSE 0 END, priority, starts_at, cursor
           FROM bodies JOIN sent USING (id) JOIN spec USING (n) ORDER BY place
         ON CONFLICT (id) DO NOTHING -- the same one twice
         RETURNING id, lane, stage),
       counted AS (
         INSERT INTO lane_changes (lane, ready, scheduled)
         SELECT lane, count(*) FILTER (WHERE stage = 0), count(*) FILTER (WHERE stage = 1) FROM stored GROUP BY lane)
  SELECT array_agg(id) INTO new_ids FROM stored;

  -- Looked up after the insert, and not before: whoever finishes meanwhile has then committed.
  finished := finished_among(new_ids, instant);
  IF finished <> '{}' THEN
    PERFORM withdraw(finished);
  END IF;
END $$;

-- Take back what keep_jobs has stored in this transaction.
CREATE FUNCTION withdraw(ids text[]) RETURNS void LANGUAGE sql AS $$
  DELETE FROM payloads WHERE id = ANY (ids);
  WITH gone AS (DELETE FROM jobs WHERE id = ANY (ids) RETURNING lane, stage)
  SELECT count_moves(array_agg(lane), array_agg(stage), array_agg(-1::smallint)) FROM gone HAVING count(*) > 0
$$;

-- Which job stands for each of these: itself, or the first one of its key. Keys that nobody uses are taken.
-- `is_new` says whether it has to be stored.
CREATE FUNCTION take_keys(ids text[], tenants text[], keys text[], fingerprints text[], keep_us bigint[],
                          conflicts_replay boolean, instant bigint)
RETURNS TABLE (place bigint, first text, is_new boolean) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE
  known text[] := finished_among(ids, instant) || ARRAY(SELECT id FROM jobs WHERE id = ANY (ids));
  taken text[];
  conflict record;
BEGIN
  WITH sent AS (
         SELECT * FROM unnest(ids, tenants, keys, fingerprints, keep_us) WITH ORDINALITY
                       AS sent (id, tenant, key, fingerprint, keep_us, place)
          WHERE key IS NOT NULL AND keep_us > 0 AND NOT id = ANY (known)),
       -- In one order for everybody, or two submitters could wait for each other.
       leaders AS (
         SELECT DISTINCT ON (tenant COLLATE "C", key COLLATE "C") *
           FROM sent ORDER BY tenant COLLATE "C", key COLLATE "C", place),
       kept AS (
         INSERT INTO keys AS stored (tenant, key, job, fingerprint, expires_at)
         SELECT tenant, key, id, fingerprint, instant + keep_us FROM leaders
         -- Only an expired one may be in the way.
         ON CONFLICT (tenant, key) DO UPDATE
            SET job = excluded.job, fingerprint = excluded.fingerprint, expires_at = excluded.expires_at
          WHERE stored.expires_at <= instant
         RETURNING job)
  SELECT coalesce(array_agg(job), '{}') INTO taken FROM kept;

  IF NOT conflicts_replay THEN
    SELECT * INTO conflict FROM under_keys(ids, tenants, keys, taken, known, instant) AS under
     WHERE under.stored_fingerprint <> fingerprints[under.place] ORDER BY under.place LIMIT 1;
    IF FOUND THEN
      RAISE EXCEPTION USING ERRCODE = 'LW001', MESSAGE = format(
        'key %L of tenant %L names job %s, which was submitted with another kind or other arguments; '
        'use a new key for a new job', keys[conflict.place], tenants[conflict.place], conflict.job);
    END IF;
  END IF;

  RETURN QUERY
  SELECT sent.place, coalesce(under.job, sent.id),
         NOT sent.id = ANY (known) AND (under.job IS NULL OR sent.id = ANY (taken))
    FROM unnest(ids) WITH ORDINALITY AS sent (id, place)
    LEFT JOIN under_keys(ids, tenants, keys, taken, known, instant) AS under USING (place);
END $$;

-- Of these jobs, those whose key is in force: which job does it name? A key that one of them has just taken counts for
-- those behind it.
CREATE FUNCTION under_keys(ids text[], tenants text[], keys text[], taken text[], known text[], instant bigint)
RETURNS TABLE (place bigint, job text, stored_fingerprint text) LANGUAGE sql AS $$
  SELECT sent.place, stored.job, stored.fingerprint
    FROM unnest(ids, tenants, keys) WITH ORDINALITY AS sent (id, tenant, key, place)
    JOIN keys AS stored ON stored.tenant = sent.tenant AND stored.key = sent.key AND stored.expires_at > instant
   WHERE NOT sent.id = ANY (known)
     AND (NOT stored.job = ANY (taken) OR sent.place >= array_position(ids, stored.job))
$$;

-- Store jobs that may have keys. Answers which job stands for each, in their order; NULL if there are no keys, and each
-- stands for itself.
CREATE FUNCTION keep_keyed(ids text[], payloads text[], spec_of integer[], specs json, keys text[], fingerprints text[],
                           conflicts_replay boolean, instant bigint)
RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  answers text[];
  new_ids text[];
  new_payloads text[];
  new_specs integer[];
BEGIN
  IF keys IS NULL THEN
    PERFORM keep_jobs(ids, payloads, spec_of, specs, instant);
    RETURN NULL;
  END IF;
  WITH sent AS MATERIALIZED (
         SELECT sent.*, specs -> (n - 1) ->> 'tenant' AS tenant, (specs -> (n - 1) ->> 'key_keep_us')::bigint AS keep_us
           FROM unnest(ids, payloads, spec_of, keys, fingerprints) WITH ORDINALITY
                AS sent (id, payload, n, key, fingerprint, place)),
       standing AS MATERIALIZED (
         SELECT answered.* FROM (
           SELECT array_agg(id ORDER BY place) AS ids, array_agg(tenant ORDER BY place) AS tenants,
                  array_agg(key ORDER BY place) AS keys, array_agg(fingerprint ORDER BY place) AS fingerprints,
                  array_agg(keep_us ORDER BY place) AS keeps FROM sent) AS all_of_them
         CROSS JOIN LATERAL take_keys(all_of_them.ids, tenants, all_of_them.keys, all_of_them.fingerprints, keeps,
                                      conflicts_replay, instant) AS answered)
  SELECT array_agg(first ORDER BY place), array_agg(id ORDER BY place) FILTER (WHERE is_new),
         array_agg(payload ORDER BY place) FILTER (WHERE is_new), array_agg(n ORDER BY place) FILTER (WHERE is_new)
    INTO answers, new_ids, new_payloads, new_specs
    FROM sent JOIN standing USING (place);
  IF new_ids IS NOT NULL THEN
    PERFORM keep_jobs(new_ids, new_payloads, new_specs, specs, instant);
  END IF;
  RETURN answers;
END $$;

-- The door for all.
CREATE FUNCTION submit(ids text[], payloads text[], spec_of integer[], specs json, keys text[] DEFAULT NULL,
                       fingerprints text[] DEFAULT NULL, conflicts_replay boolean DEFAULT false, at bigint DEFAULT NULL)
RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET jit = off AS $$
DECLARE instant bigint := coalesce(at, now_us());
BEGIN
  RETURN keep_keyed(ids, payloads, spec_of, specs, keys, fingerprints, conflicts_replay, instant);
END $$;

-- One job without a key: the same as above, by the shortest way.
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
  lane integer := lane_of(queue, tenant, needs);
BEGIN
  INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload)
  VALUES (new_id, instant, lease_us, timeout_us, attempts_max, kind, shard_key, new_payload)
  ON CONFLICT DO NOTHING;
  IF NOT FOUND THEN
    RETURN; -- a known id was submitted before
  END IF;
  INSERT INTO jobs (id, lane, stage, priority, run_at, cursor)
  VALUES (new_id, lane, 1 - is_ready, priority, starts_at, cursor);
  INSERT INTO lane_changes (lane, ready, scheduled) VALUES (lane, is_ready, 1 - is_ready);
  IF EXISTS (SELECT 1 FROM history WHERE history.id = new_id AND history.finished_at > instant - 86400000000) THEN
    PERFORM withdraw(ARRAY[new_id]);
  END IF;
END $$;
