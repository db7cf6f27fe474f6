-- Summaries of these jobs. Every day of the history has an index of its own, so only ids that are not unfinished are
-- looked up there.
SELECT jobs.id, kind, queue, tenant, state::text, priority, attempts, attempts_max,
       CASE WHEN octet_length(progress) <= 2000 THEN progress END, owner, until, cancel_requested, created_at, run_at, NULL::bigint, last_error_code, last_error_at
  FROM :schema.jobs JOIN :schema.payloads ON payloads.id = jobs.id JOIN :schema.lanes ON lanes.id = lane
 WHERE jobs.id = ANY ($1::text[])
UNION ALL
SELECT history.id, kind, queue, tenant, state::text, priority, attempts, attempts_max,
       CASE WHEN octet_length(progress) <= 2000 THEN progress END, NULL, NULL, cancel_requested, created_at, run_at, finished_at, last_error_code, last_error_at
  FROM :schema.history JOIN :schema.lanes ON lanes.id = lane
 WHERE history.id = ANY (ARRAY(SELECT asked.id FROM unnest($1::text[]) AS asked (id)
                                WHERE NOT EXISTS (SELECT FROM :schema.jobs WHERE jobs.id = asked.id COLLATE "C")))
