-- Create a lane with its first job.
INSERT INTO lanes (queue, tenant, needs) VALUES (:queue, :tenant, :needs) ON CONFLICT DO NOTHING
