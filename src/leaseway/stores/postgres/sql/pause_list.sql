-- The lanes that are paused.
SELECT queue, tenant, since FROM :schema.pauses ORDER BY queue, tenant
