-- The history is partitioned by day. A day that is older than the retention is dropped as a whole.

-- Create the partitions of today and tomorrow. If that fails now, a later call tries again; until then the default
-- partition receives the rows.
CREATE FUNCTION create_history_partitions(instant bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  day bigint;
  name text;
BEGIN
  FOR day IN SELECT generate_series(instant / 86400000000, instant / 86400000000 + 1) LOOP
    name := 'history_' || to_char(to_timestamp(day * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD');
    CONTINUE WHEN to_regclass(quote_ident(current_schema()) || '.' || name) IS NOT NULL;
    BEGIN
      -- ATTACH PARTITION does not block writers of the history; CREATE TABLE ... PARTITION OF would.
      EXECUTE format('CREATE TABLE %I (LIKE history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
      EXECUTE format('ALTER TABLE history ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                     name, day * 86400000000, (day + 1) * 86400000000);
    EXCEPTION
      WHEN lock_not_available OR check_violation OR deadlock_detected OR duplicate_table OR unique_violation THEN NULL;
    END;
  END LOOP;
END $$;

-- Drop the partitions of days that ended before this instant. Returns the number of jobs in them.
CREATE FUNCTION drop_history_partitions(before bigint) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  dropped bigint := 0;
  in_day bigint;
  name text;
BEGIN
  FOR name IN
    SELECT relname FROM pg_inherits JOIN pg_class ON pg_class.oid = inhrelid
     WHERE inhparent = 'history'::regclass AND relname ~ '^history_[0-9]{8}$'
       AND relname < 'history_' || to_char(to_timestamp(before / 1000000) AT TIME ZONE 'UTC', 'YYYYMMDD')
     ORDER BY relname
  LOOP
    BEGIN
      EXECUTE format('LOCK TABLE %I IN ACCESS EXCLUSIVE MODE', name);
      EXECUTE format(
        'WITH gone AS (SELECT lane, count(*) FILTER (WHERE state = ''done'') AS done,
                              count(*) FILTER (WHERE state = ''failed'') AS failed,
                              count(*) FILTER (WHERE state = ''cancelled'') AS cancelled, sum(bytes) AS bytes
                         FROM %I GROUP BY lane),
              counted AS (INSERT INTO lane_changes (lane, done, failed, cancelled, bytes)
                          SELECT lane, -done, -failed, -cancelled, -bytes FROM gone)
         SELECT coalesce(sum(done + failed + cancelled), 0) FROM gone', name) INTO in_day;
      EXECUTE format('DROP TABLE %I', name);
      dropped := dropped + in_day;
    EXCEPTION
      -- Another session, a backup for example, reads the partition. The next call tries again.
      WHEN lock_not_available OR deadlock_detected THEN NULL;
    END;
  END LOOP;
  RETURN dropped;
END $$;

-- Delete lanes without jobs, and flows without lanes. A submission finds its lane and inserts into lane_changes in one
-- statement, which locks the table before it looks. So nothing is being submitted while this holds its lock. Others wait
-- for at most 20 ms.
CREATE FUNCTION delete_empty_lanes(most integer) RETURNS void LANGUAGE plpgsql SET lock_timeout = '20ms' AS $$
BEGIN
  IF NOT EXISTS (SELECT 1 FROM lane_counts
                  WHERE ready = 0 AND scheduled = 0 AND leased = 0 AND done = 0 AND failed = 0 AND cancelled = 0) THEN
    RETURN;
  END IF;
  BEGIN
    LOCK TABLE lane_changes IN SHARE ROW EXCLUSIVE MODE;
    PERFORM fold_lane_changes(1);
    DELETE FROM lanes WHERE id = ANY (ARRAY(
      SELECT empty.id FROM lanes AS empty
       WHERE ready = 0 AND scheduled = 0 AND leased = 0 AND done = 0 AND failed = 0 AND cancelled = 0
         AND NOT EXISTS (SELECT 1 FROM lane_changes WHERE lane = empty.id)
       ORDER BY empty.id LIMIT most FOR UPDATE SKIP LOCKED));
    DELETE FROM flows WHERE NOT EXISTS (SELECT 1 FROM lanes WHERE lanes.queue = flows.queue AND lanes.tenant = flows.tenant);
  EXCEPTION
    -- A transaction of a submitter is open. The next call tries again.
    WHEN lock_not_available OR deadlock_detected THEN NULL;
  END;
END $$;

-- Delete jobs that finished longer ago than `keep_us`, and expired idempotency keys: at most `most` jobs besides whole
-- days, and twenty times as many keys. With a retention of two days or more, jobs are deleted only when their whole day
-- has passed.
CREATE FUNCTION prune(keep_us bigint, most integer, at bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET lock_timeout = '200ms' AS $$
DECLARE
  instant bigint := coalesce(at, now_us());
  before bigint := instant - keep_us;
  old text[];
  pruned bigint := 0;
BEGIN
  DELETE FROM idempotency_keys WHERE (tenant, key) IN (
    SELECT tenant, key FROM idempotency_keys WHERE expires_at <= instant ORDER BY expires_at LIMIT greatest(most, 0) * 20
       FOR UPDATE SKIP LOCKED);
  -- Only one transaction at a time creates and drops partitions.
  IF pg_try_advisory_xact_lock(hashtext('leaseway.days'), hashtext(current_schema())) THEN
    PERFORM create_history_partitions(instant);
    pruned := CASE WHEN most > 0 THEN drop_history_partitions(before) ELSE 0 END;
  END IF;
  IF most > 0 THEN
    IF keep_us < 2 * 86400000000 THEN
      old := ARRAY(SELECT id FROM history WHERE finished_at <= before ORDER BY finished_at, seq LIMIT most);
    ELSE
      old := ARRAY(SELECT id FROM history_default WHERE finished_at <= before ORDER BY finished_at, seq LIMIT most);
    END IF;
    pruned := pruned + cardinality(discard(old));
    PERFORM delete_empty_lanes(most);
  END IF;
  RETURN pruned;
END $$;
