-- Cancel a job that waits, ask one that runs to stop.
SELECT :schema.cancel($1, $2)
