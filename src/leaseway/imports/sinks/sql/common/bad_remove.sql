DELETE FROM leaseway_quarantine
 WHERE number = :number AND run IN (SELECT id FROM leaseway_runs WHERE target = :target)
RETURNING run, (SELECT source FROM leaseway_runs WHERE id = run)
