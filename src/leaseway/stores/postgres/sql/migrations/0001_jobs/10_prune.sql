-- History is kept by the day. A day that is over for long enough is dropped as a whole.

CREATE FUNCTION day_of(instant bigint) RETURNS bigint LANGUAGE sql IMMUTABLE RETURN instant / 86400000000;

-- A table for each of the next days. One that cannot be made now is made later: until then the rest takes its rows.
CREATE FUNCTION prepare_days(instant bigint) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  day bigint;
  name text;
BEGIN
  FOR day IN SELECT generate_series(day_of(instant), day_of(instant) + 1) LOOP
    name := 'history_' || to_char(to_timestamp(day * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD');
    CONTINUE WHEN to_regclass(quote_ident(current_schema()) || '.' || name) IS NOT NULL;
    BEGIN
      -- Made beside the history and then attached: that stops nobody who writes to it.
      EXECUTE format('CREATE TABLE %I (LIKE history INCLUDING DEFAULTS INCLUDING CONSTRAINTS)', name);
      EXECUTE format('ALTER TABLE history ATTACH PARTITION %I FOR VALUES FROM (%s) TO (%s)',
                     name, day * 86400000000, (day + 1) * 86400000000);
    EXCEPTION
      WHEN lock_not_available OR check_violation OR deadlock_detected OR duplicate_table OR unique_violation THEN NULL;
    END;
  END LOOP;
END $$;

-- Drop the days that ended before this instant; how many jobs were in them.
CREATE FUNCTION drop_days(before bigint) RETURNS bigint LANGUAGE plpgsql AS $$
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
        'WITH gone AS (SELECT lane, count(*) FILTER (WHERE stage = 3) AS done, count(*) FILTER (WHERE stage = 4) AS failed,
                              count(*) FILTER (WHERE stage = 5) AS cancelled FROM %I GROUP BY lane),
              counted AS (INSERT INTO lane_changes (lane, done, failed, cancelled)
                          SELECT lane, -done, -failed, -cancelled FROM gone)
         SELECT coalesce(sum(done + failed + cancelled), 0) FROM gone', name) INTO in_day;
      EXECUTE format('DROP TABLE %I', name);
      dropped := dropped + in_day;
    EXCEPTION
      -- Somebody reads it, a backup perhaps. The next one tries again.
      WHEN lock_not_available OR deadlock_detected THEN NULL;
    END;
  END LOOP;
  RETURN dropped;
END $$;

-- Forget what finished longer ago than this, and expired keys; at most so many jobs (but days as a whole) and twenty times as many keys.
-- A retention of two days or more is kept by the day: its jobs go when their day has passed as a whole.
CREATE FUNCTION prune(keep_us bigint, most integer, at bigint DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET lock_timeout = '200ms' AS $$
DECLARE
  instant bigint := coalesce(at, now_us());
  before bigint := instant - keep_us;
  old text[];
  pruned bigint := 0;
BEGIN
  DELETE FROM keys WHERE (tenant, key) IN (
    SELECT tenant, key FROM keys WHERE expires_at <= instant ORDER BY expires_at LIMIT greatest(most, 0) * 20
       FOR UPDATE SKIP LOCKED);
  -- One at a time: days are made and dropped by the first who comes.
  IF pg_try_advisory_xact_lock(hashtext('leaseway.days'), hashtext(current_schema())) THEN
    PERFORM prepare_days(instant);
    pruned := CASE WHEN most > 0 THEN drop_days(before) ELSE 0 END;
  END IF;
  IF most > 0 THEN
    IF keep_us < 2 * 86400000000 THEN
      old := ARRAY(SELECT id FROM history WHERE finished_at <= before ORDER BY finished_at, seq LIMIT most);
    ELSE
      old := ARRAY(SELECT id FROM history_rest WHERE finished_at <= before ORDER BY finished_at, seq LIMIT most);
    END IF;
    pruned := pruned + cardinality(discard(old));
  END IF;
  RETURN pruned;
END $$;
