-- A bounded number at a time, whenever a new one comes.
DELETE FROM levels WHERE (definition, name) IN (
    SELECT definition, name FROM levels WHERE idle_at <= :now ORDER BY idle_at LIMIT :limit
)
RETURNING definition, name
