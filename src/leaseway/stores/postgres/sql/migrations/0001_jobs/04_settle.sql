-- Move jobs out of the hot table into the history, with the stage in which they ended. The last token stays with them,
-- so that a settlement whose reply was lost is known when it comes again.
CREATE FUNCTION retire(ids text[], stages smallint[], results text[], instant bigint) RETURNS void LANGUAGE sql AS $$
  WITH ended AS (
         DELETE FROM jobs USING unnest(ids, stages, results) AS sent (id, final_stage, result)
          WHERE jobs.id = sent.id
         RETURNING jobs.*, final_stage, result),
       whole AS (
         DELETE FROM payloads USING ended WHERE payloads.id = ended.id
         RETURNING ended.*, payloads.created_at, payloads.lease_us, payloads.timeout_us, payloads.attempts_max,
                   payloads.kind, payloads.shard_key, payloads.payload),
       faults AS (DELETE FROM errors USING ended WHERE errors.job = ended.id RETURNING errors.*)
  INSERT INTO history (seq, run_at, created_at, finished_at, lease_us, timeout_us, lane, attempts, attempts_max, fence,
                       stage, priority, cancel_requested, id, last_token, kind, shard_key, last_error_code,
                       last_error_at, cursor, progress, payload, result, errors)
  SELECT seq, run_at, created_at, instant, lease_us, timeout_us, lane, attempts, attempts_max, fence,
         final_stage, priority, cancel_requested, id, coalesce(token, last_token), kind, shard_key, last_error_code,
         last_error_at, cursor, progress, payload, result,
         (SELECT json_agg(json_build_array(attempt, at, code, message, traceback) ORDER BY faults.seq)
            FROM faults WHERE faults.job = whole.id)
    FROM whole
$$;

-- End leases as done: what most settlements are, so the shortest way. The token is cleared or gone whenever a lease
-- ends, so its equality is the whole fence. Jobs that have failed before take their errors along: see retire.
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
                              fence, stage, priority, cancel_requested, id, last_token, kind, shard_key, cursor,
                              progress, payload, result)
         SELECT seq, run_at, created_at, instant, lease_us, timeout_us, lane, attempts, attempts_max,
                fence, 3, priority, cancel_requested, id, token, kind, shard_key, cursor,
                progress, payload, result
           FROM whole),
       counted AS (
         INSERT INTO lane_changes (lane, leased, done)
         SELECT lane, -count(*), count(*) FROM ended GROUP BY lane)
  SELECT count(*) FROM ended
$$;

-- End leases in any other way: as done with more to say, failed, cancelled, or pending again.
-- A job that somebody wants to be cancelled does not become pending again.
CREATE FUNCTION settle_others(settlements json, instant bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  ids text[];
  lanes integer[];
  stages smallint[];
  results text[];
BEGIN
  WITH sent AS (
         SELECT * FROM json_to_recordset(settlements) AS sent (
           id text, token text, stage smallint, delay_us bigint, run_at bigint, gives_back boolean, result text,
           code text, message text, traceback text, progress text)),
       starts AS (SELECT sent.*, coalesce(run_at, instant + delay_us) AS starts_at FROM sent),
       settled AS (
         UPDATE jobs
            SET stage = CASE WHEN starts.stage > 2 THEN starts.stage
                             WHEN cancel_requested THEN 5
                             WHEN starts_at > instant THEN 1
                             ELSE 0 END,
                run_at = CASE WHEN starts.stage > 2 THEN jobs.run_at ELSE starts_at END,
                attempts = greatest(attempts - starts.gives_back::integer, 0),
                last_token = jobs.token, token = NULL, owner = NULL, until = NULL,
                last_error_code = coalesce(starts.code, last_error_code),
                last_error_at = CASE WHEN starts.code IS NULL THEN last_error_at ELSE instant END,
                progress = coalesce(starts.progress, jobs.progress)
           FROM starts
          WHERE jobs.id = starts.id AND jobs.token = starts.token
         RETURNING jobs.id, lane, jobs.stage, attempts + starts.gives_back::integer AS attempt, result,
                   code, message, traceback),
       faults AS (
         INSERT INTO errors (job, attempt, at, code, message, traceback)
         SELECT id, attempt, instant, code, message, traceback FROM settled WHERE code IS NOT NULL)
  SELECT array_agg(settled.id), array_agg(settled.lane), array_agg(settled.stage), array_agg(settled.result)
    INTO ids, lanes, stages, results
    FROM settled;
  IF ids IS NULL THEN
    RETURN 0;
  END IF;
  PERFORM forget_errors(ids);
  PERFORM count_moves(lanes, array_fill(2::smallint, ARRAY[cardinality(ids)]), stages);
  PERFORM retire(array_agg(id), array_agg(stage), array_agg(result), instant)
     FROM unnest(ids, stages, results) AS settled (id, stage, result)
    WHERE stage > 2 HAVING count(*) > 0;
  RETURN cardinality(ids);
END $$;

-- Of each job only the newest ten errors are kept.
CREATE FUNCTION forget_errors(ids text[]) RETURNS void LANGUAGE sql AS $$
  DELETE FROM errors
   USING unnest(ids) AS settled (id)
   WHERE errors.job = settled.id
     AND errors.seq <= (SELECT seq FROM errors AS older WHERE older.job = settled.id
                         ORDER BY seq DESC OFFSET 10 LIMIT 1)
$$;

-- Jobs that are done after failed attempts.
CREATE FUNCTION settle_recovered(ids text[], tokens text[], results text[], instant bigint) RETURNS void LANGUAGE sql AS $$
  WITH held AS MATERIALIZED (
         SELECT sent.id, lane, result FROM unnest(ids, tokens, results) AS sent (id, token, result)
           JOIN jobs ON jobs.id = sent.id AND jobs.token = sent.token
            FOR UPDATE OF jobs), -- the token is checked again if another transaction is taking the lease back
       moved AS (
         SELECT array_agg(lane) AS lanes, array_agg(2::smallint) AS before, array_agg(3::smallint) AS after,
                array_agg(id) AS ids, array_agg(result) AS results FROM held)
  SELECT count_moves(lanes, before, after), retire(ids, after, results, instant) FROM moved WHERE ids IS NOT NULL
$$;

-- Which of these settlements count for nothing, because the lease had ended before? One that was accepted before is
-- accepted again.
CREATE FUNCTION refused(ids text[], tokens text[]) RETURNS SETOF text LANGUAGE sql AS $$
  SELECT sent.id FROM unnest(ids, tokens) WITH ORDINALITY AS sent (id, token, place)
   WHERE NOT EXISTS (SELECT 1 FROM history WHERE history.id = sent.id AND last_token = sent.token)
     AND NOT EXISTS (SELECT 1 FROM jobs WHERE jobs.id = sent.id AND last_token = sent.token)
   ORDER BY place
$$;

-- The door for settlements: plain results as arrays, everything else as JSON. Answers who came too late.
CREATE FUNCTION settle(done_ids text[], done_tokens text[], done_results text[], others json, instant bigint)
RETURNS SETOF text LANGUAGE plpgsql AS $$
DECLARE settled bigint;
BEGIN
  IF done_ids IS NOT NULL AND others IS NOT NULL THEN
    -- In the one order in which leases are renewed, too, or two transactions could wait for each other.
    PERFORM 1 FROM jobs
      WHERE id = ANY (done_ids || ARRAY(SELECT other ->> 'id' FROM json_array_elements(others) AS each (other)))
      ORDER BY id FOR UPDATE;
  END IF;
  IF done_ids IS NOT NULL THEN
    settled := settle_done(done_ids, done_tokens, done_results, instant);
    IF settled < cardinality(done_ids) THEN
      PERFORM settle_recovered(done_ids, done_tokens, done_results, instant);
      RETURN QUERY SELECT refused(done_ids, done_tokens);
    END IF;
  END IF;
  IF others IS NOT NULL THEN
    settled := settle_others(others, instant);
    IF settled < json_array_length(others) THEN
      RETURN QUERY SELECT refused(array_agg(id), array_agg(token))
                     FROM json_to_recordset(others) AS sent (id text, token text);
    END IF;
  END IF;
END $$;
