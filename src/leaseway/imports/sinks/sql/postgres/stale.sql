-- After the merge, written rows have the stamp of the page, so a newer stored row means that the row was stale. LATERAL:
-- see merge.sql.
SELECT count(*)
  FROM pg_temp.leaseway_page AS page
  CROSS JOIN LATERAL (
          SELECT one.stamp FROM :table AS one WHERE one.source = $1 AND one.external_id = page.external_id LIMIT 1
       ) AS stored
 WHERE stored.stamp > page.stamp
