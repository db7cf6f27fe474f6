-- Who has leases. The partial index holds nothing but leased jobs.
SELECT owner, count(*), count(*) FILTER (WHERE until <= :now), max(until - lease_us), min(until)
  FROM jobs WHERE state = 'leased' GROUP BY owner ORDER BY owner LIMIT :most
