-- What this sweep did not miss again has been seen, or is deleted by now.
DELETE FROM leaseway_absent
 WHERE target = :target AND source = :source AND run <> :run
