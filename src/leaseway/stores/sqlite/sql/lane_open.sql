-- A lane exists from its first job on, and for ever.
INSERT INTO lanes (queue, tenant) VALUES (:queue, :tenant) ON CONFLICT DO NOTHING
