-- The flows with open lanes behind a gate that have ready jobs: of each queue the first ones, the flow furthest behind
-- before the others. The lane without requirements of a capped tenant is behind a gate, too.
SELECT flows.queue, flows.tenant, plain_open * is_capped, vtime FROM json_each(:queues) AS wanted CROSS JOIN flows
 WHERE flows.queue = wanted.value AND wanted.value NOT IN (SELECT queue FROM pauses WHERE tenant = '')
   AND flows.tenant IN (SELECT tenant FROM flows AS first INDEXED BY flows_needy
                         WHERE first.queue = wanted.value AND needy_open > 0
                           AND (:tenant IS NULL OR first.tenant = :tenant)
                           AND NOT EXISTS (SELECT 1 FROM pauses
                                            WHERE pauses.queue = first.queue AND pauses.tenant = first.tenant)
                         ORDER BY first.vtime, first.tenant LIMIT :gates_max)
UNION
SELECT flows.queue, flows.tenant, 1, vtime FROM json_each(:queues) AS wanted CROSS JOIN flows
 WHERE flows.queue = wanted.value AND wanted.value NOT IN (SELECT queue FROM pauses WHERE tenant = '')
   AND flows.tenant IN (SELECT tenant FROM flows AS first INDEXED BY flows_plain
                         WHERE first.queue = wanted.value AND first.is_capped = 1 AND plain_open > 0
                           AND (:tenant IS NULL OR first.tenant = :tenant)
                           AND NOT EXISTS (SELECT 1 FROM pauses
                                            WHERE pauses.queue = first.queue AND pauses.tenant = first.tenant)
                         ORDER BY first.vtime, first.tenant LIMIT :gates_max)
 ORDER BY vtime, queue, tenant
