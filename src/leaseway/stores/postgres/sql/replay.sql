-- A second life for failed or cancelled jobs.
SELECT :schema.replay($1, $2)
