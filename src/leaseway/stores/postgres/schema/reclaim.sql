-- Expired leases and scheduled jobs whose time has come. Both are handled by exchanges, a bounded number at a time.

-- Whether a lease has expired. While an old snapshot prevents vacuum from removing dead rows, this query steps over
-- every lease that ended since. A session in which that takes long pauses the check, so that it spends at most a
-- twentieth of its time on it.
CREATE FUNCTION any_expired(instant bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  name text := format('leaseway.expiry_check_paused_until_%s', current_schema());
  began timestamptz := clock_timestamp();
  is_expired boolean;
  took_us bigint;
BEGIN
  IF nullif(current_setting(name, true), '')::bigint > now_us() THEN
    RETURN false;
  END IF;
  is_expired := EXISTS (SELECT 1 FROM jobs WHERE state = 'leased' AND until <= instant);
  took_us := extract(epoch FROM clock_timestamp() - began) * 1000000;
  IF took_us > 20000 AND NOT is_expired THEN
    PERFORM set_config(name, (now_us() + least(20 * took_us, 5000000))::text, false);
  END IF;
  RETURN is_expired;
END $$;

-- Reclaim expired leases, oldest first. The job is ready again if attempts are left, failed if not, and cancelled if
-- that was requested. The UPDATE checks expiry again, and rows that another transaction has locked are skipped.
CREATE FUNCTION reclaim(most integer, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  ids text[];
  lanes integer[];
  states job_state[];
BEGIN
  IF NOT any_expired(instant) THEN
    RETURN;
  END IF;
  WITH late AS MATERIALIZED (
         SELECT id, owner FROM jobs WHERE state = 'leased' AND until <= instant
          ORDER BY until, seq LIMIT most FOR UPDATE SKIP LOCKED),
       taken AS (
         UPDATE jobs
            SET state = CASE WHEN cancel_requested THEN 'cancelled'::job_state
                             WHEN attempts < attempts_max THEN 'ready'
                             ELSE 'failed' END,
                last_error_code = CASE WHEN cancel_requested THEN last_error_code ELSE 'lease_expired' END,
                last_error_at = CASE WHEN cancel_requested THEN last_error_at ELSE instant END,
                token = NULL, owner = NULL, until = NULL
           FROM late JOIN payloads USING (id)
          WHERE jobs.id = late.id AND jobs.state = 'leased' AND jobs.until <= instant
         RETURNING jobs.id, lane, state, attempts, late.owner, cancel_requested),
       faults AS (
         INSERT INTO errors (job, attempt, at, code, message, traceback)
         SELECT id, attempts, instant, 'lease_expired', format('worker %s stopped renewing its lease', owner), ''
           FROM taken WHERE NOT cancel_requested)
  SELECT array_agg(id), array_agg(lane), array_agg(state) INTO ids, lanes, states FROM taken;
  IF ids IS NULL THEN
    RETURN;
  END IF;
  PERFORM trim_errors(ids);
  PERFORM count_moves(lanes, array_fill('leased'::job_state, ARRAY[cardinality(ids)]), states);
  PERFORM move_to_history(array_agg(id), array_agg(state), array_agg(NULL::text), instant)
     FROM unnest(ids, states) AS taken (id, state)
    WHERE state IN ('failed', 'cancelled') HAVING count(*) > 0;
END $$;

-- Make scheduled jobs ready when their time has come.
CREATE FUNCTION promote(most integer, instant bigint) RETURNS void LANGUAGE sql AS $$
  WITH due AS MATERIALIZED (
         SELECT id FROM jobs WHERE state = 'scheduled' AND run_at <= instant
          ORDER BY run_at, seq LIMIT most FOR UPDATE SKIP LOCKED),
       moved AS (UPDATE jobs SET state = 'ready' FROM due WHERE jobs.id = due.id RETURNING lane)
  INSERT INTO lane_changes (lane, ready, scheduled)
  SELECT lane, count(*), -count(*) FROM moved GROUP BY lane
$$;
