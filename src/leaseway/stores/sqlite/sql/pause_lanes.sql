-- Claim nothing from these lanes until somebody resumes them.
INSERT INTO pauses (queue, tenant, since) VALUES (:queue, :tenant, :now) ON CONFLICT DO NOTHING
