-- Schedules: declaring, firing, pausing.

-- Create or change schedules. A schedule whose times changed starts from now, without missed fires.
CREATE FUNCTION declare_schedules(schedules_json json, at bigint DEFAULT NULL) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  INSERT INTO schedules (name, kind, cron, tz, missed, seen)
  SELECT name, kind, cron, tz, missed, coalesce(at, now_us())
    FROM json_to_recordset(schedules_json) AS declared (name text, kind text, cron text, tz text, missed text)
   ORDER BY name
  ON CONFLICT (name) DO UPDATE
     SET kind = excluded.kind, missed = excluded.missed, cron = excluded.cron, tz = excluded.tz,
         seen = CASE WHEN schedules.cron = excluded.cron AND schedules.tz = excluded.tz
                     THEN schedules.seen ELSE excluded.seen END;
END $$;

-- Advance a schedule and submit its jobs, unless another process has already done so.
CREATE FUNCTION fire_schedule(schedule text, seen_before bigint, upto bigint, ids text[], payloads text[],
                              spec_numbers integer[], specs json, keys text[], fingerprints text[], at bigint DEFAULT NULL)
RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE schedules SET seen = upto, last_fire = upto WHERE name = schedule AND seen = seen_before AND NOT paused;
  IF NOT FOUND THEN
    RETURN await_replication();
  END IF;
  IF cardinality(ids) > 0 THEN
    PERFORM store_keyed_jobs(ids, payloads, spec_numbers, specs, keys, fingerprints, true, coalesce(at, now_us()));
  END IF;
  RETURN true;
END $$;

-- Pause or resume a schedule. A resumed schedule starts from now: fires that it missed are dropped.
CREATE FUNCTION pause_schedule(schedule text, is_paused boolean, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE schedules SET paused = is_paused,
         seen = CASE WHEN paused AND NOT is_paused THEN coalesce(at, now_us()) ELSE seen END
   WHERE name = schedule;
  RETURN FOUND;
END $$;
