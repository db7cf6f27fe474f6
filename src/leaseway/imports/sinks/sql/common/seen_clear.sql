DELETE FROM leaseway_seen
 WHERE run = :run
