-- All tenants with settings.
SELECT name, weight, starts, concurrency, quotas FROM tenants ORDER BY name
