-- Behind which gates are jobs ready, and how many? In the order in which their lanes are served.
SELECT needs, tenant, sum(ready)
  FROM (SELECT needs, tenant, ready,
               row_number() OVER (ORDER BY max(vtime, :floor), vtime, queue, tenant, needs) AS turn
          FROM lanes LEFT JOIN tenants ON tenants.name = tenant
         WHERE queue IN (SELECT value FROM json_each(:queues)) AND ready > 0
           AND (:tenant IS NULL OR tenant = :tenant)
           AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = lanes.queue AND pauses.tenant IN ('', lanes.tenant))
           AND (needs <> '' OR is_capped = 1)
           AND (needs, tenant) NOT IN (SELECT value ->> 0, value ->> 1 FROM json_each(:closed)))
 GROUP BY needs, tenant ORDER BY min(turn) LIMIT :gates_max
