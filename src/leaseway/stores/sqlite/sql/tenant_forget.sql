-- Nothing is agreed any more. No row back: nothing was.
DELETE FROM tenants WHERE name = :name RETURNING name
