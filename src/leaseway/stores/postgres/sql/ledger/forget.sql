-- Remove a budget with all that is known of it.
SELECT :schema.forget_budget($1)
