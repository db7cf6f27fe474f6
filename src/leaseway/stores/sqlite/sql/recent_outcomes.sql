-- Jobs that ended after an instant, the last :most of them, counted by queue, tenant and state, with the first instant.
SELECT queue, tenant, state, count(*), min(finished_at)
  FROM (SELECT lane, state, finished_at FROM jobs WHERE finished_at > :after
         ORDER BY finished_at DESC LIMIT :most) AS late
  JOIN lanes ON lanes.id = late.lane
 GROUP BY queue, tenant, state ORDER BY queue, tenant, state = 'cancelled', state
