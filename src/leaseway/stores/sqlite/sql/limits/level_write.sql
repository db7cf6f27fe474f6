INSERT INTO levels (definition, name, level, idle_at) VALUES (:definition, :name, :level, :idle_at)
ON CONFLICT (definition, name) DO UPDATE SET level = excluded.level, idle_at = excluded.idle_at
