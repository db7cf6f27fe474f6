-- After the merge, written rows have the stamp of the page, so a newer stored row means that the row was stale.
SELECT count(*)
  FROM pg_temp.leaseway_page AS page
  JOIN :table AS stored ON stored.source = $1 AND stored.external_id = page.external_id
 WHERE stored.stamp > page.stamp
