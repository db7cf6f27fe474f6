-- Forget a finished job.
DELETE FROM jobs WHERE seq = ? AND finished_at IS NOT NULL
