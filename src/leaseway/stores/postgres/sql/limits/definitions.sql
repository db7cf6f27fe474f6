-- All that is in force.
SELECT definition, version FROM :schema.limits ORDER BY name
