-- Keep the cursor, if the caller still holds the lease. No row back: it does not.
UPDATE jobs SET cursor = :cursor WHERE id = :id AND token = :token AND until > :now RETURNING id
