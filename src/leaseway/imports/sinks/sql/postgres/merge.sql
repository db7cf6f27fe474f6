-- Older rows never replace newer ones, and equal rows are not even locked. Both conditions appear twice, because a row
-- can change between the read and the lock. In the order of keys, so that two pages cannot deadlock.
WITH written AS (
  INSERT INTO :table AS stored (source, run, first_seen, updated_at, deleted_at, deleted_reason, :columns)
  SELECT CAST($1 AS text), CAST($2 AS text), CAST($3 AS bigint), CAST($3 AS bigint),
         CASE WHEN page.deleted_at THEN CAST($3 AS bigint) END, CASE WHEN page.deleted_at THEN CAST($4 AS text) END,
         :page_columns
    FROM pg_temp.leaseway_page AS page
    LEFT JOIN :table AS known ON known.source = $1 AND known.external_id = page.external_id
   WHERE known.external_id IS NULL
      OR (page.stamp >= known.stamp
          AND (page.content_hash <> known.content_hash OR page.deleted_at <> (known.deleted_at IS NOT NULL)))
   ORDER BY page.external_id
  ON CONFLICT (source, external_id) DO UPDATE
     SET run = excluded.run, updated_at = excluded.updated_at, deleted_at = excluded.deleted_at,
         deleted_reason = excluded.deleted_reason, :changes
   WHERE excluded.stamp >= stored.stamp
     AND (excluded.content_hash <> stored.content_hash
          OR (excluded.deleted_at IS NULL) <> (stored.deleted_at IS NULL))
  RETURNING xmax = 0 AS is_new  -- only a row that existed before was locked
)
SELECT count(*) FILTER (WHERE is_new), count(*) FILTER (WHERE NOT is_new) FROM written
