-- While a lease is held. Each write carries the token; no row back means that the lease has ended or lapsed.

CREATE FUNCTION renew(ids text[], tokens text[], lease_us bigint[], at bigint DEFAULT NULL)
RETURNS TABLE (id text, token text, cancel_requested boolean) LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
#variable_conflict use_column
DECLARE instant bigint := coalesce(at, now_us());
BEGIN
  RETURN QUERY
  UPDATE jobs SET until = instant + held.lease_us FROM unnest(ids, tokens, lease_us) AS held (id, token, lease_us)
   WHERE jobs.id = held.id AND jobs.token = held.token AND until > instant
  RETURNING jobs.id, jobs.token, jobs.cancel_requested;
END $$;

CREATE FUNCTION checkpoint(job text, held_token text, new_cursor text, at bigint DEFAULT NULL) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  UPDATE jobs SET cursor = new_cursor WHERE id = job AND token = held_token AND until > coalesce(at, now_us());
  RETURN FOUND;
END $$;

CREATE FUNCTION report(ids text[], tokens text[], progresses text[]) RETURNS void LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT SET jit = off SET enable_seqscan = off SET enable_hashjoin = off SET enable_mergejoin = off
AS $$
BEGIN
  UPDATE jobs SET progress = told.progress FROM unnest(ids, tokens, progresses) AS told (id, token, progress)
   WHERE jobs.id = told.id AND jobs.token = told.token;
END $$;

-- Is something ready in these queues that is not behind a closed gate, and if not: when does the next job become due or
-- the next lease expire?
CREATE FUNCTION wait_us(wanted_queues text[], at bigint DEFAULT NULL, closed json DEFAULT NULL) RETURNS bigint LANGUAGE plpgsql STABLE
SECURITY DEFINER SET search_path FROM CURRENT SET jit = off SET plan_cache_mode = force_generic_plan
SET enable_seqscan = off AS $$
DECLARE due bigint;
BEGIN
  IF EXISTS (SELECT 1 FROM lane_counts
              WHERE queue = ANY (wanted_queues) AND ready > 0
                AND (NOT is_gated OR closed IS NULL OR (needs, tenant) NOT IN (
                      SELECT gate.needs, gate.tenant FROM json_to_recordset(closed) AS gate (needs text, tenant text)))) THEN
    RETURN 0;
  END IF;
  due := least((SELECT run_at FROM jobs WHERE stage = 1 ORDER BY run_at, seq LIMIT 1),
               (SELECT until FROM jobs WHERE stage = 2 ORDER BY until, seq LIMIT 1)) - coalesce(at, now_us());
  RETURN CASE WHEN due < 0 THEN 0 ELSE due END;
END $$;
