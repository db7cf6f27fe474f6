-- Extend leases that are still held.
SELECT * FROM :schema.renew($1, $2, $3, $4)
