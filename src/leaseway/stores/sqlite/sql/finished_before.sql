-- Jobs that finished long enough ago, oldest first, a bounded number at a time.
SELECT seq, id, lane, state, payload, result + rest FROM job_sizes
 WHERE finished_at <= :before ORDER BY finished_at, seq LIMIT :limit
