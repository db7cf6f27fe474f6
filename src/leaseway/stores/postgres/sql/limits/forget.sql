-- Remove a definition and all that is known of its limits.
SELECT :schema.forget_limit($1)
