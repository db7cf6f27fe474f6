-- Since when the oldest ready job of each lane waits. A lane's index is ordered by priority, and then by time: its first
-- entry of each priority is looked at, and the rest is leapt over.
WITH RECURSIVE firsts (lane, seq) AS (
  SELECT id, (SELECT seq FROM jobs WHERE state = 'ready' AND lane = lanes.id ORDER BY priority DESC, run_at LIMIT 1)
    FROM lanes WHERE ready > 0
  UNION ALL
  SELECT firsts.lane, (SELECT later.seq FROM jobs AS later
                        WHERE later.state = 'ready' AND later.lane = firsts.lane AND later.priority < first.priority
                        ORDER BY later.priority DESC, later.run_at LIMIT 1)
    FROM firsts JOIN jobs AS first ON first.seq = firsts.seq
)
SELECT queue, tenant, needs, min(run_at)
  FROM firsts JOIN jobs ON jobs.seq = firsts.seq JOIN lanes ON lanes.id = firsts.lane
 GROUP BY queue, tenant, needs ORDER BY queue, tenant, needs
