-- All tenants with whom something was agreed.
SELECT name, weight, starts, concurrency FROM tenants ORDER BY name
