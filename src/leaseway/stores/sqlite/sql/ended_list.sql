-- What ended after an instant, the last so many of them, by lane and state, with the first instant among them.
SELECT queue, tenant, stage, count(*), min(finished_at)
  FROM (SELECT lane, stage, finished_at FROM jobs WHERE stage > 2 AND finished_at > :after
         ORDER BY finished_at DESC LIMIT :most) AS late
  JOIN lanes ON lanes.id = late.lane
 GROUP BY queue, tenant, stage ORDER BY queue, tenant, stage
