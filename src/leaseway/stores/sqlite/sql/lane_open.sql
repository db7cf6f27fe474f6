-- Create a lane with its first job; it is never deleted.
INSERT INTO lanes (queue, tenant, needs) VALUES (:queue, :tenant, :needs) ON CONFLICT DO NOTHING
