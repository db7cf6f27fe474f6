-- How many jobs finished after an instant, by lane and state, and since when the count is complete.
-- $1 after, $2 and $3 the bounds of today, $4 today's partition, $5 at most this many pages.
-- Only the last pages are read, for the reason given in recent_summaries.sql.
WITH pages AS MATERIALIZED (
  SELECT to_regclass($4) IS NOT NULL AS has_day,
         coalesce(pg_relation_size(to_regclass($4)), 0) / current_setting('block_size')::integer AS day,
         pg_relation_size(':schema.history_default') / current_setting('block_size')::integer AS rest),
ends AS MATERIALIZED (
  SELECT lane, state, finished_at, true AS is_day FROM :schema.history
   WHERE finished_at >= $2 AND finished_at < $3 AND (SELECT has_day FROM pages)
     AND ctid >= (SELECT format('(%s,0)', greatest(day - $5, 0))::tid FROM pages)
  UNION ALL
  SELECT lane, state, finished_at, false FROM :schema.history_default
   WHERE ctid >= (SELECT format('(%s,0)', greatest(rest - $5, 0))::tid FROM pages)),
bound AS (
  SELECT greatest($1,
                  CASE WHEN has_day THEN $2 END,
                  CASE WHEN day > $5 THEN (SELECT min(finished_at) FROM ends WHERE is_day) END,
                  CASE WHEN rest > $5 THEN (SELECT min(finished_at) FROM ends WHERE NOT is_day) END) AS since
    FROM pages)
SELECT since, queue, tenant, state::text, many
  FROM bound LEFT JOIN (
    SELECT queue, tenant, state, count(*) AS many
      FROM ends JOIN :schema.lanes ON lanes.id = ends.lane
     WHERE finished_at > (SELECT since FROM bound)
     GROUP BY queue, tenant, state) AS counted ON true
 ORDER BY queue, tenant, counted.state
