-- Jobs that finished long enough ago, oldest first, a bounded number at a time.
SELECT seq, id, lane, stage FROM jobs
 WHERE stage > 2 AND finished_at <= :before ORDER BY finished_at, seq LIMIT :limit
