-- Create a flow with its first lane.
INSERT INTO flows (queue, tenant) VALUES (:queue, :tenant) ON CONFLICT DO NOTHING
