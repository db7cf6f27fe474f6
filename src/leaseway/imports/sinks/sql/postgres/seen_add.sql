-- In the order of keys, so that two pages with the same ids cannot deadlock.
INSERT INTO leaseway_seen (run, external_id)
SELECT CAST(:run AS text), id FROM unnest(CAST(:ids AS text[])) AS id ORDER BY id
ON CONFLICT (run, external_id) DO NOTHING
