-- Store a row of the history, unless it is stored.
INSERT INTO work_history (id, level, at, tenant, queue, kind, cell) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING
