-- All tenants with settings.
SELECT name, weight, starts, concurrency FROM tenants ORDER BY name
