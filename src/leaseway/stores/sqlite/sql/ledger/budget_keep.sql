INSERT INTO budgets (name, definition, declared, version) VALUES (:name, :definition, :declared, :version)
ON CONFLICT (name) DO UPDATE SET definition = excluded.definition, declared = excluded.declared, version = excluded.version
