DELETE FROM leaseway_absent
 WHERE target = :target AND source = :source AND external_id = ANY (CAST(:ids AS text[]))
RETURNING 1
