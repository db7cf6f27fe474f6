-- Forget a finished job.
DELETE FROM jobs WHERE seq = ? AND stage > 2
