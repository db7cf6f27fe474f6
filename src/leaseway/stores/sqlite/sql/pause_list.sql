-- The lanes that are paused.
SELECT queue, tenant, since FROM pauses ORDER BY queue, tenant
