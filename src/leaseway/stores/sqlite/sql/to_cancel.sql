-- Jobs that this worker holds and that somebody wants to be stopped.
SELECT id FROM jobs WHERE state = 'leased' AND cancel_requested = 1 AND owner = :worker ORDER BY seq
