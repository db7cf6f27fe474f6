-- Lanes to claim from, the one furthest behind first: those without a gate, and those whose gate is admitted.
SELECT id, queue, tenant, needs, ready, coalesce(weight, 1), needs <> '' OR coalesce(is_capped, 0), max(vtime, :floor)
  FROM lanes LEFT JOIN tenants ON tenants.name = tenant
 WHERE queue IN (SELECT value FROM json_each(:queues)) AND ready > 0
   AND (:tenant IS NULL OR tenant = :tenant)
   AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = lanes.queue AND pauses.tenant IN ('', lanes.tenant))
   AND ((needs = '' AND coalesce(is_capped, 0) = 0)
        OR (needs, tenant) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:admits)))
 ORDER BY max(vtime, :floor), vtime, queue, tenant, needs LIMIT :lanes_max
