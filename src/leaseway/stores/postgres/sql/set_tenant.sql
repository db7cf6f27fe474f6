-- What was agreed with a tenant, from now on.
SELECT :schema.set_tenant($1, $2, $3, $4, $5)
