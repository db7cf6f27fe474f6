-- The record of one pool, or all.
SELECT name, version, record, written_at FROM pools WHERE :name IS NULL OR name = :name ORDER BY name LIMIT :most
