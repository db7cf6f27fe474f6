-- Is something ready that is not behind a closed gate, and if not: when does the next job become due, the next lease
-- expire or the next lane open?
WITH wanted AS (SELECT value AS queue FROM json_each(:queues)
                 WHERE value NOT IN (SELECT queue FROM pauses WHERE tenant = ''))
SELECT EXISTS (SELECT 1 FROM wanted CROSS JOIN flows INDEXED BY flows_plain
                WHERE flows.queue = wanted.queue AND is_capped = 0 AND plain_open > 0
                  AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = flows.queue AND pauses.tenant = flows.tenant))
       OR EXISTS (SELECT 1 FROM wanted CROSS JOIN flows INDEXED BY flows_plain
                   WHERE flows.queue = wanted.queue AND is_capped = 1 AND plain_open > 0
                     AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = flows.queue AND pauses.tenant = flows.tenant)
                     AND ('', tenant) NOT IN (SELECT value ->> 0, value ->> 1 FROM json_each(:closed)))
       OR EXISTS (SELECT 1 FROM wanted CROSS JOIN flows INDEXED BY flows_needy CROSS JOIN lanes INDEXED BY lanes_gated
                   WHERE flows.queue = wanted.queue AND needy_open > 0
                     AND NOT EXISTS (SELECT 1 FROM pauses WHERE pauses.queue = flows.queue AND pauses.tenant = flows.tenant)
                     AND lanes.queue = flows.queue AND lanes.tenant = flows.tenant AND ready > 0 AND needs <> ''
                     AND closed_until IS NULL
                     AND (needs, lanes.tenant) NOT IN (SELECT value ->> 0, value ->> 1 FROM json_each(:closed))) AS is_ready,
       (SELECT min(run_at) FROM jobs WHERE state = 'scheduled') AS run_at,
       (SELECT min(until) FROM jobs WHERE state = 'leased') AS until,
       (SELECT min(closed_until) FROM lanes WHERE closed_until IS NOT NULL) AS opens_at
