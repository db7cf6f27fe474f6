-- Workers that hold leases: how many, how many expired, last renewal, next expiry. $1 now (NULL: the server's), $2 at
-- most.
SELECT owner, count(*), count(*) FILTER (WHERE until <= coalesce($1::bigint, :schema.now_us())),
       max(greatest(until, 0) - least(greatest(lease_us, 1000000), 86400000000)), min(until)
  FROM :schema.jobs JOIN :schema.payloads USING (id)
 WHERE state = 'leased' GROUP BY owner ORDER BY owner LIMIT $2
