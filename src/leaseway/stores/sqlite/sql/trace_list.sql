-- Trace contexts of leased jobs.
SELECT jobs.id, trace
  FROM json_each(:leases) AS held CROSS JOIN jobs ON jobs.id = json_extract(held.value, '$[0]')
 WHERE token = json_extract(held.value, '$[1]') AND trace IS NOT NULL
