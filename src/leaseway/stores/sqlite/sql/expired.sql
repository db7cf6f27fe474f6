-- Expired leases, a bounded number at a time. Of the oldest, lanes take turns.
SELECT seq, id, lane, owner, attempts, attempts_max, cancel_requested
  FROM (SELECT *, row_number() OVER (PARTITION BY lane ORDER BY until, seq) AS turn
          FROM (SELECT seq, id, lane, owner, attempts, attempts_max, cancel_requested, until FROM jobs
                 WHERE state = 'leased' AND until <= :now ORDER BY until, seq LIMIT :backlog))
 ORDER BY turn, until, seq LIMIT :limit
