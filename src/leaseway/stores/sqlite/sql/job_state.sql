-- Where a job is in its life.
SELECT lane, state FROM jobs WHERE id = :id
