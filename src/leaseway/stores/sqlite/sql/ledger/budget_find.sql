-- What is kept under these names; the full name first.
SELECT definition, declared, version FROM budgets WHERE name IN (:name, :budget) ORDER BY name = :name DESC LIMIT 1
