-- List a worker, if there is room.
INSERT INTO workers (name, tenant, since, seen_at, beat)
SELECT :name, :tenant, :since, :now, :beat WHERE (SELECT count(*) FROM workers WHERE tenant = :tenant) < :most
