-- The lane and state of a job.
SELECT lane, state FROM jobs WHERE id = :id
