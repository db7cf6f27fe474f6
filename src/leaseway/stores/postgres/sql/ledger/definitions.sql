-- All budgets in force, with their versions and stamps.
SELECT definition::text, version, stamp FROM :schema.budgets ORDER BY name
