-- Open all lanes of a tenant, because its caps have changed.
UPDATE lanes SET closed_until = NULL, closed_why = NULL
 WHERE closed_until IS NOT NULL AND tenant = :tenant
