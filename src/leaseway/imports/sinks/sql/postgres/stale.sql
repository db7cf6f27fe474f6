-- After the merge: what we wrote has our stamp, so whatever is newer made a row of the page stale.
SELECT count(*)
  FROM pg_temp.leaseway_page AS page
  JOIN :table AS stored ON stored.source = $1 AND stored.external_id = page.external_id
 WHERE stored.stamp > page.stamp
