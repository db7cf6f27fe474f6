SELECT count(*)
  FROM leaseway_absent
 WHERE target = :target AND source = :source AND run = :run
