DELETE FROM leaseway_absent
 WHERE target = :target AND source = :source AND external_id IN (SELECT value FROM json_each(:ids))
RETURNING 1
