-- Older rows never replace newer ones, unless the run overwrites them ($5), and equal rows are not even locked. The
-- content of a tombstone is not compared, but its stamp. Both conditions appear twice, because a row can change between the read and the
-- lock. In the order of keys, so that two pages cannot deadlock. LATERAL: before the table is analyzed for the first
-- time, the server takes it for small and would compare every row of the page with every row of the table.
WITH written AS (
  INSERT INTO :table AS stored (source, run, first_seen, updated_at, deleted_at, deleted_reason, :columns)
  SELECT CAST($1 AS text), CAST($2 AS text), CAST($3 AS bigint), CAST($3 AS bigint),
         CASE WHEN page.deleted_at THEN CAST($3 AS bigint) END, CASE WHEN page.deleted_at THEN CAST($4 AS text) END,
         :page_columns
    FROM pg_temp.leaseway_page AS page
    LEFT JOIN LATERAL (
           SELECT one.external_id, one.stamp, one.content_hash, one.deleted_at
             FROM :table AS one
            WHERE one.source = $1 AND one.external_id = page.external_id
            LIMIT 1
         ) AS known ON true
   WHERE known.external_id IS NULL
      OR ((page.stamp >= known.stamp OR CAST($5 AS boolean))
          AND (page.deleted_at <> (known.deleted_at IS NOT NULL)
               OR CASE WHEN page.deleted_at THEN page.stamp <> known.stamp
                       ELSE page.content_hash <> known.content_hash END))
   ORDER BY page.external_id
  ON CONFLICT (source, external_id) DO UPDATE
     SET run = excluded.run, updated_at = excluded.updated_at, deleted_at = excluded.deleted_at,
         deleted_reason = excluded.deleted_reason, :changes
   WHERE (excluded.stamp >= stored.stamp OR CAST($5 AS boolean))
     AND ((excluded.deleted_at IS NULL) <> (stored.deleted_at IS NULL)
          OR CASE WHEN excluded.deleted_at IS NOT NULL THEN excluded.stamp <> stored.stamp
                  ELSE excluded.content_hash <> stored.content_hash END)
  RETURNING xmax = 0 AS is_new  -- only a row that existed before was locked
)
SELECT count(*) FILTER (WHERE is_new), count(*) FILTER (WHERE NOT is_new) FROM written
