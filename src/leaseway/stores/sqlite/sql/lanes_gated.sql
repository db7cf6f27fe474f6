-- The first open lanes of a flow that are behind a gate and have ready jobs, in the order in which they are served.
SELECT needs, ready
  FROM (SELECT vtime, needs, ready FROM lanes
         WHERE queue = :queue AND tenant = :tenant AND needs = '' AND :has_plain AND ready > 0 AND closed_until IS NULL
        UNION ALL
        SELECT vtime, needs, ready
          FROM (SELECT vtime, needs, ready FROM lanes INDEXED BY lanes_gated
                 WHERE queue = :queue AND tenant = :tenant AND ready > 0 AND needs <> '' AND closed_until IS NULL
                 ORDER BY vtime, needs LIMIT :limit))
 ORDER BY vtime, needs LIMIT :limit
