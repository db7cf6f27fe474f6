-- Pause lanes: nothing is claimed from them until they are resumed.
INSERT INTO pauses (queue, tenant, since) VALUES (:queue, :tenant, :now) ON CONFLICT DO NOTHING
