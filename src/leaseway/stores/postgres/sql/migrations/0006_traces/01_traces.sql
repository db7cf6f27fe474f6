-- Who submitted a job, for those who trace. It goes when the job has ended, and nothing is kept of the others.
ALTER TABLE payloads ADD COLUMN trace text;

-- As before, with the trace that a spec may name. `submit_one` takes jobs without.
CREATE OR REPLACE FUNCTION keep_jobs(ids text[], payloads text[], spec_of integer[], specs json, instant bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE
  new_ids text[];
  finished text[];
BEGIN
  WITH read AS MATERIALIZED (
         SELECT *
           FROM ROWS FROM (json_to_recordset(specs) AS (
                  queue text, tenant text, kind text, priority smallint, attempts_max integer, lease_us bigint,
                  timeout_us bigint, shard_key text, cursor text, delay_us bigint, run_at bigint, needs text,
                  trace text))
                WITH ORDINALITY AS each (queue, tenant, kind, priority, attempts_max, lease_us, timeout_us,
                                         shard_key, cursor, delay_us, run_at, needs, trace, n)
          WHERE n = ANY (spec_of)
          -- New lanes are opened in one order by everybody, or two submitters could wait for each other.
          ORDER BY queue COLLATE "C", tenant COLLATE "C", needs COLLATE "C"),
       spec AS MATERIALIZED (
         SELECT lane_of(queue, tenant, coalesce(needs, '')) AS lane, coalesce(run_at, instant + delay_us) AS starts_at,
                read.* FROM read),
       sent AS MATERIALIZED (
         SELECT * FROM unnest(ids, payloads, spec_of) WITH ORDINALITY AS sent (id, payload, n, place)),
       bodies AS (
         INSERT INTO payloads (id, created_at, lease_us, timeout_us, attempts_max, kind, shard_key, payload, trace)
         SELECT id, instant, lease_us, timeout_us, attempts_max, kind, shard_key, payload, trace
           FROM sent JOIN spec USING (n)
         -- A known id was submitted before: nothing happens.
         ON CONFLICT (id) DO NOTHING RETURNING id),
       stored AS (
         INSERT INTO jobs (id, lane, stage, priority, run_at, cursor)
         SELECT id, lane, CASE WHEN starts_at > instant THEN 1 ELSE 0 END, priority, starts_at, cursor
           FROM bodies JOIN sent USING (id) JOIN spec USING (n) ORDER BY place
         ON CONFLICT (id) DO NOTHING -- the same one twice
         RETURNING id, lane, stage),
       counted AS (
         INSERT INTO lane_changes (lane, ready, scheduled)
         SELECT lane, count(*) FILTER (WHERE stage = 0), count(*) FILTER (WHERE stage = 1) FROM stored GROUP BY lane)
  SELECT array_agg(id) INTO new_ids FROM stored;

  -- Looked up after the insert, and not before: whoever finishes meanwhile has then committed.
  finished := finished_among(new_ids, instant);
  IF finished <> '{}' THEN
    PERFORM withdraw(finished);
  END IF;
END $$;
