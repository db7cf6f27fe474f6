INSERT INTO leaseway_seen (run, external_id)
SELECT :run, value FROM json_each(:ids) WHERE true
ON CONFLICT (run, external_id) DO NOTHING
