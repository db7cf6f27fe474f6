-- The time since when the oldest ready job of each lane waits. The index of ready jobs is ordered by lane, priority and
-- time, so this reads one entry per lane and priority and skips the rest.
WITH RECURSIVE firsts AS (
  SELECT first.lane, first.priority, first.run_at
    FROM :schema.lanes CROSS JOIN LATERAL (
      SELECT lane, priority, run_at FROM :schema.jobs WHERE state = 'ready' AND lane = lanes.id
       ORDER BY priority DESC, run_at LIMIT 1) AS first
  UNION ALL
  SELECT later.lane, later.priority, later.run_at
    FROM firsts CROSS JOIN LATERAL (
      SELECT lane, priority, run_at FROM :schema.jobs
       WHERE state = 'ready' AND lane = firsts.lane AND priority < firsts.priority
       ORDER BY priority DESC, run_at LIMIT 1) AS later
)
SELECT queue, tenant, needs, min(run_at) FROM firsts JOIN :schema.lanes ON lanes.id = firsts.lane
 GROUP BY queue, tenant, needs ORDER BY queue, tenant, needs
