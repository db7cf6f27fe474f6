-- Where a job is in its life.
SELECT lane, stage FROM jobs WHERE id = :id
