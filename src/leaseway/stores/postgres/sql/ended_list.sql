-- What ended after an instant, by lane and state, and since when everything was counted.
-- $1 after, $2 and $3 today, $4 the table of today, $5 how many pages.
-- History grows at its end, so the last pages of today's table and of the rest hold what ended last: reading these pages
-- costs the same however much there is, while the index by time covers new pages only after the next vacuum.
WITH pages AS MATERIALIZED (
  SELECT to_regclass($4) IS NOT NULL AS has_day,
         coalesce(pg_relation_size(to_regclass($4)), 0) / current_setting('block_size')::integer AS day,
         pg_relation_size(':schema.history_rest') / current_setting('block_size')::integer AS rest),
ends AS MATERIALIZED (
  SELECT lane, stage, finished_at, true AS is_day FROM :schema.history
   WHERE finished_at >= $2 AND finished_at < $3 AND (SELECT has_day FROM pages)
     AND ctid >= (SELECT format('(%s,0)', greatest(day - $5, 0))::tid FROM pages)
  UNION ALL
  SELECT lane, stage, finished_at, false FROM :schema.history_rest
   WHERE ctid >= (SELECT format('(%s,0)', greatest(rest - $5, 0))::tid FROM pages)),
bound AS (
  SELECT greatest($1,
                  CASE WHEN has_day THEN $2 END,
                  CASE WHEN day > $5 THEN (SELECT min(finished_at) FROM ends WHERE is_day) END,
                  CASE WHEN rest > $5 THEN (SELECT min(finished_at) FROM ends WHERE NOT is_day) END) AS since
    FROM pages)
SELECT since, queue, tenant, stage, many
  FROM bound LEFT JOIN (
    SELECT queue, tenant, stage, count(*) AS many
      FROM ends JOIN :schema.lanes ON lanes.id = ends.lane
     WHERE finished_at > (SELECT since FROM bound)
     GROUP BY queue, tenant, stage) AS counted ON true
 ORDER BY queue, tenant, stage
