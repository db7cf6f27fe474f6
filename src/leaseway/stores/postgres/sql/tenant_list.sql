-- All tenants with whom something was agreed.
SELECT name, weight, starts, concurrency FROM :schema.tenants ORDER BY name
