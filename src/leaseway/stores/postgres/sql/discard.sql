-- Forget finished jobs.
SELECT :schema.discard($1)
