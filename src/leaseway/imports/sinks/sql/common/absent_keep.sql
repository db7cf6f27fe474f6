-- A row that is not absent in this sweep was seen, or has been deleted.
DELETE FROM leaseway_absent
 WHERE target = :target AND source = :source AND run <> :run
