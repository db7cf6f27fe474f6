-- Expired leases, oldest first, a bounded number at a time.
SELECT seq, id, lane, owner, attempts, attempts_max, cancel_requested FROM jobs
 WHERE state = 'leased' AND until <= :now ORDER BY until, seq LIMIT :limit
