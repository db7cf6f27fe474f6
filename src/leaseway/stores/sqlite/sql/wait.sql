-- Is something ready that is not behind a closed gate, and if not: when does the next job become due or the next lease
-- expire?
SELECT EXISTS (SELECT 1 FROM lanes LEFT JOIN tenants ON tenants.name = tenant
                WHERE queue IN (SELECT value FROM json_each(:queues)) AND ready > 0
                  AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = lanes.queue AND pauses.tenant IN ('', lanes.tenant))
                  AND ((needs = '' AND coalesce(is_capped, 0) = 0)
                       OR (needs, tenant) NOT IN (SELECT value ->> 0, value ->> 1 FROM json_each(:closed)))) AS is_ready,
       (SELECT min(run_at) FROM jobs WHERE state = 'scheduled') AS run_at,
       (SELECT min(until) FROM jobs WHERE state = 'leased') AS until
