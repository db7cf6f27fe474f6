-- Whether a lease ran out. While an old snapshot keeps dead rows alive, this steps over every lease that ended since: a
-- session for which that takes long looks less often, for a twentieth of its time.
CREATE FUNCTION any_expired(instant bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  name text := format('leaseway.rest_%s', current_schema());
  began timestamptz := clock_timestamp();
  is_expired boolean;
  took_us bigint;
BEGIN
  IF nullif(current_setting(name, true), '')::bigint > now_us() THEN
    RETURN false;
  END IF;
  is_expired := EXISTS (SELECT 1 FROM jobs WHERE stage = 2 AND until <= instant);
  took_us := extract(epoch FROM clock_timestamp() - began) * 1000000;
  IF took_us > 20000 AND NOT is_expired THEN
    PERFORM set_config(name, (now_us() + least(20 * took_us, 5000000))::text, false);
  END IF;
  RETURN is_expired;
END $$;

-- Take back leases that ran out, oldest first, a bounded number at a time: pending if attempts are left, failed if not,
-- cancelled if somebody asked for it. Expiry is checked again where it is written. What another transaction is
-- writing at the moment is left to it.
CREATE FUNCTION reclaim(most integer, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  ids text[];
  lanes integer[];
  stages smallint[];
BEGIN
  IF NOT any_expired(instant) THEN
    RETURN;
  END IF;
  WITH late AS MATERIALIZED (
         SELECT id, owner FROM jobs WHERE stage = 2 AND until <= instant
          ORDER BY until, seq LIMIT most FOR UPDATE SKIP LOCKED),
       taken AS (
         UPDATE jobs
            SET stage = CASE WHEN cancel_requested THEN 5 WHEN attempts < attempts_max THEN 0 ELSE 4 END,
                last_error_code = CASE WHEN cancel_requested THEN last_error_code ELSE 'lease_expired' END,
                last_error_at = CASE WHEN cancel_requested THEN last_error_at ELSE instant END,
                token = NULL, owner = NULL, until = NULL
           FROM late JOIN payloads USING (id)
          WHERE jobs.id = late.id AND jobs.stage = 2 AND jobs.until <= instant
         RETURNING jobs.id, lane, stage, attempts, late.owner, cancel_requested),
       faults AS (
         INSERT INTO errors (job, attempt, at, code, message, traceback)
         SELECT id, attempts, instant, 'lease_expired', format('worker %s stopped renewing its lease', owner), ''
           FROM taken WHERE NOT cancel_requested)
  SELECT array_agg(id), array_agg(lane), array_agg(stage) INTO ids, lanes, stages FROM taken;
  IF ids IS NULL THEN
    RETURN;
  END IF;
  PERFORM forget_errors(ids);
  PERFORM count_moves(lanes, array_fill(2::smallint, ARRAY[cardinality(ids)]), stages);
  PERFORM retire(array_agg(id), array_agg(stage), array_agg(NULL::text), instant)
     FROM unnest(ids, stages) AS taken (id, stage)
    WHERE stage > 2 HAVING count(*) > 0;
END $$;

-- Scheduled jobs whose time has come are ready, a bounded number at a time.
CREATE FUNCTION promote(most integer, instant bigint) RETURNS void LANGUAGE sql AS $$
  WITH due AS MATERIALIZED (
         SELECT id FROM jobs WHERE stage = 1 AND run_at <= instant
          ORDER BY run_at, seq LIMIT most FOR UPDATE SKIP LOCKED),
       moved AS (UPDATE jobs SET stage = 0 FROM due WHERE jobs.id = due.id RETURNING lane)
  INSERT INTO lane_changes (lane, ready, scheduled)
  SELECT lane, count(*), -count(*) FROM moved GROUP BY lane
$$;
