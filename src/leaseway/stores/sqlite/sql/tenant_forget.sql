-- Delete a tenant's settings. No row is returned if there are none.
DELETE FROM tenants WHERE name = :name RETURNING name
