-- Workers that hold leases. The partial index contains only leased jobs.
SELECT owner, count(*), count(*) FILTER (WHERE until <= :now),
       max(max(until, 0) - min(max(lease_us, 1000000), 86400000000)), min(until)
  FROM jobs WHERE state = 'leased' GROUP BY owner ORDER BY owner LIMIT :most
