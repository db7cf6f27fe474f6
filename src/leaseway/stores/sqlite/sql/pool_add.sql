-- The first record of a pool, if there is room.
INSERT INTO pools (name, version, record, written_at)
SELECT :name, :version, :record, :now WHERE (SELECT count(*) FROM pools) < :most
ON CONFLICT DO NOTHING
