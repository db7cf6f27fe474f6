-- Workers that hold leases. The partial index contains only leased jobs.
SELECT owner, count(*), count(*) FILTER (WHERE until <= :now), max(until - lease_us), min(until)
  FROM jobs WHERE state = 'leased' GROUP BY owner ORDER BY owner LIMIT :most
