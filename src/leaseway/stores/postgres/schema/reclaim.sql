-- Expired leases and scheduled jobs whose time has come. Both are handled by exchanges, a bounded number at a time, and
-- lanes take turns: a tenant with very many of them does not delay the others.

-- Whether a lease has expired. While an old snapshot prevents vacuum from removing dead rows, this query steps over
-- every lease that ended since. A session in which that takes long pauses the check, so that it spends at most a
-- twentieth of its time on it. A check that reads few pages of the index is slow because the machine is busy or another
-- session has locked the table; that pauses nothing, because expired leases would only be found later.
CREATE FUNCTION any_expired(instant bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  name text := format('leaseway.expiry_check_paused_until_%s', current_schema());
  pages_before bigint := pg_stat_get_xact_blocks_fetched('jobs_leased'::regclass);
  began timestamptz := clock_timestamp();
  late_at bigint := instant - expiry_grace_us();
  is_expired boolean;
  took_us bigint;
BEGIN
  IF nullif(current_setting(name, true), '')::bigint > now_us() THEN
    RETURN false;
  END IF;
  is_expired := EXISTS (SELECT 1 FROM jobs WHERE state = 'leased' AND until <= late_at);
  took_us := extract(epoch FROM clock_timestamp() - began) * 1000000;
  IF took_us > 20000 AND NOT is_expired AND pg_stat_get_xact_blocks_fetched('jobs_leased'::regclass) - pages_before > 20 THEN
    PERFORM set_config(name, (now_us() + least(20 * took_us, 5000000))::text, false);
  END IF;
  RETURN is_expired;
END $$;

-- Reclaim expired leases. Of the oldest ten thousand, lanes take turns. The job is ready again if attempts are left, failed if not, and cancelled if
-- that was requested. The UPDATE checks expiry again, and rows that another transaction has locked are skipped.
CREATE FUNCTION reclaim(most integer, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  late_at bigint := instant - expiry_grace_us();
  ids text[];
  lanes integer[];
  states job_state[];
BEGIN
  IF NOT any_expired(instant) THEN
    RETURN;
  END IF;
  WITH late AS MATERIALIZED (
         SELECT jobs.id, owner
           FROM (SELECT *, row_number() OVER (PARTITION BY lane ORDER BY until, seq) AS turn
                   FROM (SELECT id, lane, until, seq FROM jobs WHERE state = 'leased' AND until <= late_at
                          ORDER BY until, seq LIMIT 10000) AS oldest) AS turns
           JOIN jobs USING (id)
          ORDER BY turn, turns.until, turns.seq LIMIT most FOR UPDATE OF jobs SKIP LOCKED),
       taken AS (
         UPDATE jobs
            SET state = CASE WHEN cancel_requested THEN 'cancelled'::job_state
                             WHEN attempts < attempts_max THEN 'ready'
                             ELSE 'failed' END,
                last_error_code = CASE WHEN cancel_requested THEN last_error_code ELSE 'lease_expired' END,
                last_error_at = CASE WHEN cancel_requested THEN last_error_at ELSE instant END,
                token = NULL, owner = NULL, until = NULL
           FROM late JOIN payloads USING (id)
          WHERE jobs.id = late.id AND jobs.state = 'leased' AND jobs.until <= late_at
         RETURNING jobs.id, lane, state, attempts, cancel_requested,
                   format('worker %s stopped renewing its lease', late.owner) AS message),
       faults AS (
         INSERT INTO errors (job, attempt, at, code, message, traceback)
         SELECT id, attempts, instant, 'lease_expired', message, '' FROM taken WHERE NOT cancel_requested),
       counted AS (
         INSERT INTO lane_changes (lane, bytes)
         SELECT lane, sum(octet_length(message)) FROM taken WHERE NOT cancel_requested GROUP BY lane)
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

-- Make scheduled jobs ready when their time has come: the earliest `most`. If more are due, these may all be in one lane,
-- so as many again are taken from lanes in turns.
CREATE FUNCTION promote(most integer, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  earliest text[] := ARRAY(SELECT id FROM jobs WHERE state = 'scheduled' AND run_at <= instant
                            ORDER BY run_at, seq LIMIT most FOR UPDATE SKIP LOCKED);
BEGIN
  PERFORM make_ready(earliest);
  IF cardinality(earliest) = most THEN
    PERFORM promote_by_lane(most, instant);
  END IF;
END $$;

CREATE FUNCTION make_ready(ids text[]) RETURNS void LANGUAGE sql AS $$
  WITH moved AS (
         UPDATE jobs SET state = 'ready' FROM unnest(ids) AS due (id) WHERE jobs.id = due.id RETURNING lane)
  INSERT INTO lane_changes (lane, ready, scheduled)
  SELECT lane, count(*), -count(*) FROM moved GROUP BY lane
$$;

-- Visit the next `most` lanes with scheduled jobs, and make as many jobs ready there, the same number in each lane. Each
-- step of the visit jumps to the next lane in the index, however many jobs a lane has.
CREATE FUNCTION promote_by_lane(most integer, instant bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  visited integer[];
  due integer[];
BEGIN
  WITH RECURSIVE step (next_lane, number) AS (
         (SELECT lane, 1 FROM jobs
           WHERE state = 'scheduled' AND lane > (SELECT last_value FROM promoted_upto) ORDER BY lane LIMIT 1)
         UNION ALL
         SELECT next.lane, number + 1
           FROM step CROSS JOIN LATERAL (SELECT lane FROM jobs WHERE state = 'scheduled' AND lane > next_lane
                                          ORDER BY lane LIMIT 1) AS next
          WHERE number < most)
  SELECT array_agg(next_lane), array_agg(next_lane) FILTER (WHERE EXISTS (
           SELECT 1 FROM jobs WHERE lane = next_lane AND state = 'scheduled' AND run_at <= instant))
    INTO visited, due FROM step;
  PERFORM setval('promoted_upto', CASE WHEN cardinality(visited) = most THEN visited[most] ELSE 0 END);
  PERFORM make_ready(ARRAY(
    SELECT first.id FROM unnest(due) AS each (lane) CROSS JOIN LATERAL (
      SELECT id FROM jobs WHERE jobs.lane = each.lane AND state = 'scheduled' AND run_at <= instant
       ORDER BY run_at, seq LIMIT most / cardinality(due) FOR UPDATE SKIP LOCKED) AS first));
END $$;
