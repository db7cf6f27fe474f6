-- Since when the oldest ready job of each lane waits. A lane's index is ordered by priority, and then by time: its first
-- entry of each priority is looked at, and the rest is leapt over.
WITH RECURSIVE firsts AS (
  SELECT first.lane, first.priority, first.run_at
    FROM :schema.lanes CROSS JOIN LATERAL (
      SELECT lane, priority, run_at FROM :schema.jobs WHERE stage = 0 AND lane = lanes.id
       ORDER BY priority DESC, run_at LIMIT 1) AS first
  UNION ALL
  SELECT later.lane, later.priority, later.run_at
    FROM firsts CROSS JOIN LATERAL (
      SELECT lane, priority, run_at FROM :schema.jobs
       WHERE stage = 0 AND lane = firsts.lane AND priority < firsts.priority
       ORDER BY priority DESC, run_at LIMIT 1) AS later
)
SELECT queue, tenant, needs, min(run_at) FROM firsts JOIN :schema.lanes ON lanes.id = firsts.lane
 GROUP BY queue, tenant, needs ORDER BY queue, tenant, needs
