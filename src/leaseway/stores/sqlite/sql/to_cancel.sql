-- Jobs leased by this worker that are to be cancelled.
SELECT id FROM jobs WHERE state = 'leased' AND cancel_requested = 1 AND owner = :worker ORDER BY seq
