-- Who has leases. The partial index holds nothing but leased jobs.
SELECT owner, count(*), count(*) FILTER (WHERE until <= coalesce($1::bigint, :schema.now_us())),
       max(until - lease_us), min(until)
  FROM :schema.jobs JOIN :schema.payloads USING (id)
 WHERE stage = 2 GROUP BY owner ORDER BY owner LIMIT $2
