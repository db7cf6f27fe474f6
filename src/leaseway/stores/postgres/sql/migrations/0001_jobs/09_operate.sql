-- What people do.

CREATE FUNCTION cancel(job text, at bigint DEFAULT NULL) RETURNS text
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  instant bigint := coalesce(at, now_us());
  found_lane integer;
  found_stage smallint;
BEGIN
  SELECT lane, stage INTO found_lane, found_stage FROM jobs WHERE id = job FOR UPDATE;
  IF NOT FOUND THEN
    RETURN CASE WHEN EXISTS (SELECT 1 FROM history WHERE id = job) THEN 'finished' ELSE 'unknown' END;
  END IF;
  IF found_stage = 2 THEN
    UPDATE jobs SET cancel_requested = true WHERE id = job;
    RETURN 'requested';
  END IF;
  PERFORM count_moves(ARRAY[found_lane], ARRAY[found_stage], ARRAY[5::smallint]);
  PERFORM retire(ARRAY[job], ARRAY[5::smallint], ARRAY[NULL::text], instant);
  RETURN 'cancelled';
END $$;

-- A second life for failed or cancelled jobs: fresh attempts, the old cursor.
CREATE FUNCTION replay(ids text[], at bigint DEFAULT NULL) RETURNS text[]
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE
  instant bigint := coalesce(at, now_us());
  answers text[];
BEGIN
  WITH back AS (DELETE FROM history WHERE id = ANY (ids) AND stage > 3 RETURNING *),
       bodies AS (
         INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload)
         SELECT id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload FROM back),
       stored AS (
         INSERT INTO jobs (seq, id, lane, stage, priority, run_at, fence, last_error_code, last_error_at, cursor, progress)
         SELECT seq, id, lane, 0, priority, instant, fence, last_error_code, last_error_at, cursor, progress FROM back),
       faults AS (
         INSERT INTO errors (job, attempt, at, code, message, traceback)
         SELECT id, (fault ->> 0)::integer, (fault ->> 1)::bigint, fault ->> 2, fault ->> 3, fault ->> 4
           FROM back CROSS JOIN LATERAL json_array_elements(errors) WITH ORDINALITY AS each (fault, place)
          ORDER BY seq, place),
       counted AS (
         INSERT INTO lane_changes (lane, ready, failed, cancelled)
         SELECT lane, count(*), -count(*) FILTER (WHERE stage = 4), -count(*) FILTER (WHERE stage = 5)
           FROM back GROUP BY lane)
  SELECT coalesce(array_agg(id ORDER BY seq), '{}') INTO answers FROM back;
  RETURN answers;
END $$;

CREATE FUNCTION discard(ids text[]) RETURNS text[] LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE answers text[];
BEGIN
  WITH gone AS (DELETE FROM history WHERE id = ANY (ids) RETURNING seq, id, lane, stage),
       counted AS (
         INSERT INTO lane_changes (lane, done, failed, cancelled)
         SELECT lane, -count(*) FILTER (WHERE stage = 3), -count(*) FILTER (WHERE stage = 4),
                -count(*) FILTER (WHERE stage = 5)
           FROM gone GROUP BY lane)
  SELECT coalesce(array_agg(id ORDER BY seq), '{}') INTO answers FROM gone;
  RETURN answers;
END $$;
