-- Is something ready, and if not: when does the next job become due or the next lease expire?
SELECT EXISTS (SELECT 1 FROM lanes WHERE queue IN (SELECT value FROM json_each(:queues)) AND ready > 0) AS is_ready,
       (SELECT min(run_at) FROM jobs WHERE stage = 1) AS run_at,
       (SELECT min(until) FROM jobs WHERE stage = 2) AS until
