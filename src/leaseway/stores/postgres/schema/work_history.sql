-- The history of the work, in rows that merge: see leaseway.domain.history. (The table `history` holds finished jobs.)

-- `cell` is JSON that only the client reads. Level 0: minutes, 1: hours, 2: days.
CREATE TABLE work_history (
  id text COLLATE "C" PRIMARY KEY,
  level smallint NOT NULL,
  at bigint NOT NULL,
  tenant text COLLATE "C" NOT NULL,
  queue text COLLATE "C" NOT NULL,
  kind text COLLATE "C" NOT NULL,
  cell text NOT NULL
) WITH (autovacuum_vacuum_scale_factor = 0.05, autovacuum_vacuum_threshold = 2000);
CREATE INDEX work_history_by_time ON work_history (level, at);

-- Delete rows that were merged and store others. An instant of 0 stands for the current minute. The commit waits for no
-- disk: what a crash loses are figures of the last moment.
CREATE FUNCTION replace_work_history(old text[], ids text[], levels smallint[], ats bigint[], tenants text[], queues text[],
                                     kinds text[], cells text[], instant bigint)
RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT SET synchronous_commit = off AS $$
DECLARE now CONSTANT bigint := coalesce(instant, now_us());
BEGIN
  DELETE FROM work_history WHERE id = ANY (old);
  INSERT INTO work_history (id, level, at, tenant, queue, kind, cell)
  SELECT id, level, CASE WHEN at = 0 THEN now - now % 60000000 ELSE at END, tenant, queue, kind, cell
    FROM unnest(ids, levels, ats, tenants, queues, kinds, cells) AS sent (id, level, at, tenant, queue, kind, cell)
  ON CONFLICT (id) DO NOTHING;
END $$;

CREATE FUNCTION prune_work_history(old_level smallint, before bigint, most integer) RETURNS bigint LANGUAGE plpgsql
SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE deleted bigint;
BEGIN
  DELETE FROM work_history WHERE id IN (
    SELECT id FROM work_history WHERE level = old_level AND at < before LIMIT most FOR UPDATE SKIP LOCKED);
  GET DIAGNOSTICS deleted = ROW_COUNT;
  RETURN deleted;
END $$;
