-- What operators do with jobs: cancel, retry, run now, discard.

-- Returns 'cancelled', 'requested' (the job is leased; its worker is notified), 'finished' or 'unknown'.
CREATE FUNCTION cancel(job text, at bigint DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  instant bigint := coalesce(at, now_us());
  found_lane integer;
  found_state job_state;
BEGIN
  SELECT lane, state INTO found_lane, found_state FROM jobs WHERE id = job FOR UPDATE;
  IF NOT FOUND THEN
    PERFORM await_replication();
    RETURN CASE WHEN EXISTS (SELECT 1 FROM history WHERE id = job) THEN 'finished' ELSE 'unknown' END;
  END IF;
  IF found_state = 'leased' THEN
    UPDATE jobs SET cancel_requested = true WHERE id = job;
    RETURN 'requested';
  END IF;
  PERFORM count_moves(ARRAY[found_lane], ARRAY[found_state], ARRAY['cancelled'::job_state]);
  PERFORM move_to_history(ARRAY[job], ARRAY['cancelled'::job_state], ARRAY[NULL::text], instant);
  RETURN 'cancelled';
END $$;

-- Run failed or cancelled jobs again: with all their attempts, from their last cursor. Returns their ids in the order
-- of submission.
CREATE FUNCTION retry(ids text[], at bigint DEFAULT NULL) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  instant bigint := coalesce(at, now_us());
  answers text[];
BEGIN
  WITH back AS (DELETE FROM history WHERE id = ANY (ids) AND state IN ('failed', 'cancelled') RETURNING *),
       bodies AS (
         INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload)
         SELECT id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload FROM back),
       stored AS (
         INSERT INTO jobs (seq, id, lane, state, priority, run_at, fence, last_error_code, last_error_at, cursor, progress)
         SELECT seq, id, lane, 'ready', priority, instant, fence, last_error_code, last_error_at, cursor, progress FROM back),
       faults AS (
         INSERT INTO errors (job, attempt, at, code, message, traceback)
         SELECT id, (fault ->> 0)::integer, (fault ->> 1)::bigint, fault ->> 2, fault ->> 3, fault ->> 4
           FROM back CROSS JOIN LATERAL json_array_elements(errors) WITH ORDINALITY AS each (fault, place)
          ORDER BY seq, place),
       counted AS (
         INSERT INTO lane_changes (lane, ready, failed, cancelled, bytes)
         SELECT lane, count(*), -count(*) FILTER (WHERE state = 'failed'), -count(*) FILTER (WHERE state = 'cancelled'),
                -coalesce(sum(octet_length(result)), 0)
           FROM back GROUP BY lane)
  SELECT coalesce(array_agg(id ORDER BY seq), '{}') INTO answers FROM back;
  IF answers = '{}' THEN
    PERFORM await_replication();
  END IF;
  RETURN answers;
END $$;

-- Make scheduled jobs ready before their time. Returns their ids in the order of submission.
CREATE FUNCTION run_now(ids text[], at bigint DEFAULT NULL) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  instant bigint := coalesce(at, now_us());
  answers text[];
BEGIN
  WITH wanted AS MATERIALIZED (
         SELECT id FROM jobs WHERE id = ANY (ids) AND state = 'scheduled' ORDER BY id FOR UPDATE),
       moved AS (
         UPDATE jobs SET state = 'ready', run_at = least(run_at, instant) FROM wanted WHERE jobs.id = wanted.id
         RETURNING seq, jobs.id, lane),
       counted AS (
         INSERT INTO lane_changes (lane, ready, scheduled) SELECT lane, count(*), -count(*) FROM moved GROUP BY lane)
  SELECT coalesce(array_agg(id ORDER BY seq), '{}') INTO answers FROM moved;
  IF answers = '{}' THEN
    PERFORM await_replication();
  END IF;
  RETURN answers;
END $$;

-- Delete finished jobs. Returns their ids in the order of submission.
CREATE FUNCTION discard(ids text[]) RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE answers text[];
BEGIN
  WITH gone AS (DELETE FROM history WHERE id = ANY (ids) RETURNING seq, id, lane, state, bytes),
       counted AS (
         INSERT INTO lane_changes (lane, done, failed, cancelled, bytes)
         SELECT lane, -count(*) FILTER (WHERE state = 'done'), -count(*) FILTER (WHERE state = 'failed'),
                -count(*) FILTER (WHERE state = 'cancelled'), -sum(bytes)
           FROM gone GROUP BY lane)
  SELECT coalesce(array_agg(id ORDER BY seq), '{}') INTO answers FROM gone;
  IF answers = '{}' THEN
    PERFORM await_replication();
  END IF;
  RETURN answers;
END $$;
