-- Lanes to claim from: those without a gate, and those whose gate is admitted. The first lane of each flow comes first,
-- the flow furthest behind before the others; then the second lane of each flow, and so on. The lanes of a gate are found
-- by the gate: the cost depends on the lanes that exist, not on the product of queues and gates. Of each queue, the walk
-- over the flows without a gate ends after as many as one claim serves.
SELECT id, queue, tenant, needs, ready, weight, is_gated, place, lane_place
  FROM (SELECT lanes.id, lanes.queue, lanes.tenant, needs, ready, coalesce(weight, 1) AS weight,
               needs <> '' OR flows.is_capped AS is_gated,
               max(flows.vtime, :floor) AS place, max(lanes.vtime, lane_floor) AS lane_place, flows.vtime AS flow_vtime,
               row_number() OVER (PARTITION BY lanes.queue, lanes.tenant ORDER BY lanes.vtime, needs) AS rank
          FROM lanes JOIN flows ON flows.queue = lanes.queue AND flows.tenant = lanes.tenant
          LEFT JOIN tenants ON tenants.name = lanes.tenant
         WHERE lanes.id IN (SELECT plain.id FROM json_each(:queues) AS wanted CROSS JOIN lanes AS plain
                             WHERE plain.queue = wanted.value AND plain.needs = ''
                               AND wanted.value NOT IN (SELECT queue FROM pauses WHERE tenant = '')
                               AND plain.tenant IN (
                                     SELECT tenant FROM flows AS first INDEXED BY flows_plain
                                      WHERE first.queue = wanted.value AND first.is_capped = 0 AND plain_open > 0
                                        AND (:tenant IS NULL OR first.tenant = :tenant)
                                        AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = first.queue
                                                                               AND pauses.tenant = first.tenant)
                                      ORDER BY first.vtime, first.tenant LIMIT :lanes_max)
                            UNION ALL
                            SELECT lanes.id FROM json_each(:admits) AS gate CROSS JOIN lanes INDEXED BY lanes_of_gate
                             WHERE tenant = gate.value ->> 1 AND needs = gate.value ->> 0
                               AND queue IN (SELECT value FROM json_each(:queues)))
           AND ready > 0 AND (:tenant IS NULL OR lanes.tenant = :tenant)
           AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = lanes.queue AND pauses.tenant IN ('', lanes.tenant))
           AND ((needs = '' AND flows.is_capped = 0 AND closed_until IS NULL)
                OR (needs, lanes.tenant) IN (SELECT value ->> 0, value ->> 1 FROM json_each(:admits))))
 ORDER BY rank, flow_vtime, queue, tenant LIMIT :lanes_max
