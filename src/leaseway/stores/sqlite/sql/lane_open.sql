-- A lane exists from its first job on, and for ever.
INSERT INTO lanes (queue, tenant, needs) VALUES (:queue, :tenant, :needs) ON CONFLICT DO NOTHING
