-- Settling leased jobs, and the writes of a running job: renewal, checkpoint, progress.
--
-- Every write carries the lease's token. The token is cleared whenever a lease ends, so comparing it is the whole
-- fence: a worker that lost its lease changes nothing.

-- What a job keeps besides its payload and its errors.
CREATE FUNCTION text_bytes(cursor text, progress text, result text) RETURNS integer LANGUAGE sql IMMUTABLE PARALLEL SAFE
RETURN coalesce(octet_length(cursor), 0) + coalesce(octet_length(progress), 0) + coalesce(octet_length(result), 0);

-- Move jobs from `jobs` to `history`, and count the bytes of their results. The last token is kept there, so that a
-- settlement whose reply was lost is recognized when it is repeated.
CREATE FUNCTION move_to_history(ids text[], states job_state[], results text[], instant bigint) RETURNS void LANGUAGE sql AS $$
  WITH ended AS (
         DELETE FROM jobs USING unnest(ids, states, results) AS sent (id, final_state, result)
          WHERE jobs.id = sent.id
         RETURNING jobs.*, final_state, result),
       whole AS (
         DELETE FROM payloads USING ended WHERE payloads.id = ended.id
         RETURNING ended.*, payloads.created_at, payloads.lease_us, payloads.timeout_us, payloads.attempts_max,
                   payloads.kind, payloads.shard_key, payloads.payload),
       faults AS (DELETE FROM errors USING ended WHERE errors.job = ended.id),
       kept AS (
         INSERT INTO history (seq, run_at, created_at, finished_at, lease_us, timeout_us, lane, attempts, attempts_max,
                              fence, state, priority, cancel_requested, id, last_token, kind, shard_key, last_error_code,
                              last_error_at, cursor, progress, payload, result, bytes, errors)
         SELECT whole.seq, run_at, created_at, instant, lease_us, timeout_us, lane, attempts, attempts_max,
                fence, final_state, priority, cancel_requested, id, coalesce(token, last_token), kind, shard_key,
                last_error_code, last_error_at, cursor, progress, payload, result,
                octet_length(payload) + text_bytes(cursor, progress, result) + coalesce(of_errors.bytes, 0), of_errors.list
           -- Read by index as they were before this statement deletes them: a search in `faults` for each of thousands
           -- of jobs would take their square.
           FROM whole CROSS JOIN LATERAL (
                  SELECT json_agg(json_build_array(attempt, at, code, message, traceback) ORDER BY errors.seq) AS list,
                         sum(octet_length(message) + octet_length(traceback)) AS bytes
                    FROM errors WHERE errors.job = whole.id) AS of_errors
         RETURNING lane, octet_length(result) AS more)
  INSERT INTO lane_changes (lane, bytes) SELECT lane, sum(more) FROM kept GROUP BY lane HAVING sum(more) > 0
$$;

-- Settle jobs as done: the common case and the shortest path. Jobs with failed attempts also have errors to move, which
-- settle_done_after_errors does.
CREATE FUNCTION settle_done(ids text[], tokens text[], results text[], instant bigint) RETURNS bigint LANGUAGE sql AS $$
  WITH ended AS (
         DELETE FROM jobs USING unnest(ids, tokens, results) AS sent (id, token, result)
          WHERE jobs.id = sent.id AND jobs.token = sent.token AND jobs.last_error_code IS NULL
         RETURNING jobs.*, sent.result),
       whole AS (
         DELETE FROM payloads USING ended WHERE payloads.id = ended.id
         RETURNING ended.*, payloads.created_at, payloads.lease_us, payloads.timeout_us, payloads.attempts_max,
                   payloads.kind, payloads.shard_key, payloads.payload),
       kept AS (
         INSERT INTO history (seq, run_at, created_at, finished_at, lease_us, timeout_us, lane, attempts, attempts_max,
                              fence, state, priority, cancel_requested, id, last_token, kind, shard_key, cursor,
                              progress, payload, result, bytes)
         SELECT seq, run_at, created_at, instant, lease_us, timeout_us, lane, attempts, attempts_max,
                fence, 'done', priority, cancel_requested, id, token, kind, shard_key, cursor,
                progress, payload, result, octet_length(payload) + text_bytes(cursor, progress, result)
           FROM whole),
       counted AS (
         INSERT INTO lane_changes (lane, leased, done, bytes)
         SELECT lane, -count(*), count(*), coalesce(sum(octet_length(result)), 0) FROM ended GROUP BY lane)
  SELECT count(*) FROM ended
$$;

CREATE FUNCTION settle_done_after_errors(ids text[], tokens text[], results text[], instant bigint) RETURNS void
LANGUAGE sql AS $$
  WITH held AS MATERIALIZED (
         SELECT sent.id, lane, result FROM unnest(ids, tokens, results) AS sent (id, token, result)
           JOIN jobs ON jobs.id = sent.id AND jobs.token = sent.token
            FOR UPDATE OF jobs), -- rechecks the token if another transaction is reclaiming the lease
       moved AS (
         SELECT array_agg(lane) AS lanes, array_agg('leased'::job_state) AS before, array_agg('done'::job_state) AS after,
                array_agg(id) AS ids, array_agg(result) AS results FROM held)
  SELECT count_moves(lanes, before, after), move_to_history(ids, after, results, instant) FROM moved WHERE ids IS NOT NULL
$$;

-- All other settlements: done with progress or an error, failed, cancelled, or pending again (sent as 'ready'). A job
-- whose cancellation was requested does not become pending again.
CREATE FUNCTION settle_others(settlements json, instant bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  ids text[];
  lanes integer[];
  states job_state[];
  results text[];
BEGIN
  WITH sent AS (
         SELECT * FROM json_to_recordset(settlements) AS sent (
           id text, token text, state job_state, delay_us bigint, run_at bigint, returns_attempt boolean, result text,
           code text, message text, traceback text, progress text)),
       -- Locked first: a report of the same worker must not change the progress between reading and replacing it.
       starts AS MATERIALIZED (
         SELECT sent.*, coalesce(sent.run_at, instant + delay_us) AS starts_at,
                coalesce(octet_length(sent.progress) - coalesce(octet_length(jobs.progress), 0), 0) AS more_progress
           FROM sent JOIN jobs ON jobs.id = sent.id AND jobs.token = sent.token FOR UPDATE OF jobs),
       settled AS (
         UPDATE jobs
            SET state = CASE WHEN starts.state <> 'ready' THEN starts.state
                             WHEN cancel_requested THEN 'cancelled'
                             WHEN starts_at > instant THEN 'scheduled'
                             ELSE 'ready' END,
                run_at = CASE WHEN starts.state <> 'ready' THEN jobs.run_at ELSE starts_at END,
                attempts = greatest(attempts - starts.returns_attempt::integer, 0),
                last_token = jobs.token, token = NULL, owner = NULL, until = NULL,
                last_error_code = coalesce(starts.code, last_error_code),
                last_error_at = CASE WHEN starts.code IS NULL THEN last_error_at ELSE instant END,
                progress = coalesce(starts.progress, jobs.progress)
           FROM starts
          WHERE jobs.id = starts.id AND jobs.token = starts.token
         RETURNING jobs.id, lane, jobs.state, attempts + starts.returns_attempt::integer AS attempt, result,
                   code, message, traceback, more_progress),
       faults AS (
         INSERT INTO errors (job, attempt, at, code, message, traceback)
         SELECT id, attempt, instant, code, message, traceback FROM settled WHERE code IS NOT NULL),
       sizes AS (
         SELECT lane, more_progress + CASE WHEN code IS NULL THEN 0
                                           ELSE octet_length(message) + octet_length(traceback) END AS more FROM settled),
       counted AS (
         INSERT INTO lane_changes (lane, bytes) SELECT lane, sum(more) FROM sizes GROUP BY lane HAVING sum(more) <> 0)
  SELECT array_agg(settled.id), array_agg(settled.lane), array_agg(settled.state), array_agg(settled.result)
    INTO ids, lanes, states, results
    FROM settled;
  IF ids IS NULL THEN
    RETURN 0;
  END IF;
  PERFORM trim_errors(ids);
  PERFORM count_moves(lanes, array_fill('leased'::job_state, ARRAY[cardinality(ids)]), states);
  PERFORM move_to_history(array_agg(id), array_agg(state), array_agg(result), instant)
     FROM unnest(ids, states, results) AS settled (id, state, result)
    WHERE state IN ('done', 'failed', 'cancelled') HAVING count(*) > 0;
  RETURN cardinality(ids);
END $$;

-- Keep only the newest ten errors of each job.
CREATE FUNCTION trim_errors(ids text[]) RETURNS void LANGUAGE sql AS $$
  WITH gone AS (
         DELETE FROM errors
          USING unnest(ids) AS settled (id)
          WHERE errors.job = settled.id
            AND errors.seq <= (SELECT seq FROM errors AS older WHERE older.job = settled.id
                                ORDER BY seq DESC OFFSET 10 LIMIT 1)
         RETURNING job, octet_length(message) + octet_length(traceback) AS bytes)
  INSERT INTO lane_changes (lane, bytes) SELECT lane, -sum(bytes) FROM gone JOIN jobs ON jobs.id = gone.job GROUP BY lane
$$;

-- Those of these settlements that arrived after the lease had ended. A repetition of an accepted settlement is
-- accepted.
CREATE FUNCTION rejected_settlements(ids text[], tokens text[]) RETURNS SETOF text LANGUAGE sql AS $$
  SELECT sent.id FROM unnest(ids, tokens) WITH ORDINALITY AS sent (id, token, place)
   WHERE NOT EXISTS (SELECT 1 FROM history WHERE history.id = sent.id AND last_token = sent.token)
     AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = sent.id AND last_token = sent.token)
   ORDER BY place
$$;

-- Settle: plain results as arrays, all others as JSON. Returns the ids of rejected settlements.
CREATE FUNCTION settle(done_ids text[], done_tokens text[], done_results text[], others json, instant bigint)
RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE settled bigint;
BEGIN
  IF done_ids IS NOT NULL AND others IS NOT NULL THEN
    -- Renewals lock in this order, too, so that two transactions cannot deadlock.
    PERFORM 1 FROM jobs
      WHERE id = ANY (done_ids || ARRAY(SELECT other ->> 'id' FROM json_array_elements(others) AS each (other)))
      ORDER BY id FOR UPDATE;
  END IF;
  IF done_ids IS NOT NULL THEN
    settled := settle_done(done_ids, done_tokens, done_results, instant);
    IF settled < cardinality(done_ids) THEN
      PERFORM settle_done_after_errors(done_ids, done_tokens, done_results, instant);
      PERFORM await_replication();
      RETURN QUERY SELECT rejected_settlements(done_ids, done_tokens);
    END IF;
  END IF;
  IF others IS NOT NULL THEN
    settled := settle_others(others, instant);
    IF settled < json_array_length(others) THEN
      PERFORM await_replication();
      RETURN QUERY SELECT rejected_settlements(array_agg(id), array_agg(token))
                     FROM json_to_recordset(others) AS sent (id text, token text);
    END IF;
  END IF;
END $$;

-- Store the jobs that settled jobs have submitted. A key conflict cannot be reported to the handler any more, so the
-- job that the key names is kept.
CREATE FUNCTION store_children(accepted text[], parents text[], ids text[], payloads text[], spec_numbers integer[],
                               specs json, keys text[], fingerprints text[], instant bigint)
RETURNS void LANGUAGE sql AS $$
  SELECT store_keyed_jobs(array_agg(id ORDER BY place), array_agg(payload ORDER BY place), array_agg(n ORDER BY place),
                          specs, CASE WHEN keys IS NOT NULL THEN array_agg(key ORDER BY place) END,
                          array_agg(fingerprint ORDER BY place), true, instant)
    FROM unnest(parents, ids, payloads, spec_numbers, keys, fingerprints) WITH ORDINALITY
         AS child (parent, id, payload, n, key, fingerprint, place)
   WHERE parent = ANY (accepted)
$$;

-- Settle jobs and store their children in the same transaction. Returns the ids of rejected settlements.
CREATE FUNCTION settle_with_children(
  done_ids text[], done_tokens text[], done_results text[], others json,
  parents text[], parent_tokens text[], child_ids text[], child_payloads text[], child_spec_numbers integer[],
  child_specs json, child_keys text[], child_fingerprints text[], instant bigint)
RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE accepted text[];
BEGIN
  IF parents IS NOT NULL THEN
    -- The parents are locked before they are settled: a lease that is held now stays held until its settlement.
    accepted := ARRAY(SELECT jobs.id FROM unnest(parents, parent_tokens) AS sent (id, token)
                        JOIN jobs ON jobs.id = sent.id AND jobs.token = sent.token
                       ORDER BY jobs.id FOR UPDATE OF jobs);
  END IF;
  RETURN QUERY SELECT settle(done_ids, done_tokens, done_results, others, instant);
  IF accepted <> '{}' THEN
    PERFORM store_children(accepted, parents, child_ids, child_payloads, child_spec_numbers, child_specs, child_keys,
                           child_fingerprints, instant);
  END IF;
END $$;

-- Settlements without a claim. The client uses it for the rare exchange that settles one job twice: such settlements
-- are applied one after the other.
CREATE FUNCTION settle_alone(
  done_ids text[], done_tokens text[], done_results text[], others json,
  parents text[], parent_tokens text[], child_ids text[], child_payloads text[], child_spec_numbers integer[],
  child_specs json, child_keys text[], child_fingerprints text[], at bigint DEFAULT NULL)
RETURNS SETOF text LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
  SELECT settle_with_children(done_ids, done_tokens, done_results, others, parents, parent_tokens, child_ids,
                              child_payloads, child_spec_numbers, child_specs, child_keys, child_fingerprints,
                              coalesce(at, now_us()))
$$;

-- Extend leases. A lease that is missing in the answer has ended or expired.
CREATE FUNCTION renew(ids text[], tokens text[], lease_us bigint[], at bigint DEFAULT NULL)
RETURNS TABLE (id text, token text, cancel_requested boolean) LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE
  instant bigint := coalesce(at, now_us());
  late_at bigint := instant - expiry_grace_us();
BEGIN
  RETURN QUERY
  UPDATE jobs SET until = instant + held.lease_us FROM unnest(ids, tokens, lease_us) AS held (id, token, lease_us)
   WHERE jobs.id = held.id AND jobs.token = held.token AND until > late_at
  RETURNING jobs.id, jobs.token, jobs.cancel_requested;
END $$;

-- The old size is read under the row's lock, so that concurrent writers of one job count each change once.
CREATE FUNCTION checkpoint(job text, held_token text, new_cursor text, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  found_lane integer;
  old_bytes integer;
BEGIN
  SELECT lane, octet_length(cursor) INTO found_lane, old_bytes FROM jobs
   WHERE id = job AND token = held_token AND until > coalesce(at, now_us()) - expiry_grace_us() FOR UPDATE;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  UPDATE jobs SET cursor = new_cursor WHERE id = job;
  PERFORM count_bytes(ARRAY[found_lane], ARRAY[octet_length(new_cursor) - coalesce(old_bytes, 0)]);
  RETURN true;
END $$;

CREATE FUNCTION report_progress(ids text[], tokens text[], progresses text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
DECLARE
  lanes integer[];
  changes integer[];
BEGIN
  WITH held AS MATERIALIZED (
         SELECT jobs.id, octet_length(jobs.progress) AS bytes, sent.progress
           FROM unnest(ids, tokens, progresses) AS sent (id, token, progress)
           JOIN jobs ON jobs.id = sent.id AND jobs.token = sent.token FOR UPDATE OF jobs),
       reported AS (
         UPDATE jobs SET progress = held.progress FROM held WHERE jobs.id = held.id
         RETURNING lane, octet_length(held.progress) - coalesce(held.bytes, 0) AS change)
  SELECT array_agg(lane), array_agg(change) INTO lanes, changes FROM reported;
  PERFORM count_bytes(lanes, changes);
END $$;

-- Record by how much texts of jobs have grown. Long jobs write cursors and progress between exchanges, so this folds the
-- changes, too.
CREATE FUNCTION count_bytes(changed integer[], changes integer[]) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  INSERT INTO lane_changes (lane, bytes)
  SELECT lane, sum(change) FROM unnest(changed, changes) AS grown (lane, change) GROUP BY lane HAVING sum(change) <> 0;
  IF FOUND AND random() < 0.04 THEN
    PERFORM fold_lane_changes(25);
  END IF;
END $$;
