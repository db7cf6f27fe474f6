-- With the server's time, as the time of the transaction.
DELETE FROM leaseway_quarantine
 WHERE number = :number AND run IN (SELECT id FROM leaseway_runs WHERE target = :target)
RETURNING run, (SELECT source FROM leaseway_runs WHERE id = run),
          (extract(epoch FROM clock_timestamp()) * 1000000)::bigint AS now
