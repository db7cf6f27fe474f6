SELECT external_id
  FROM leaseway_absent
 WHERE target = :target AND source = :source AND sweeps >= :sweeps AND external_id > :after
 ORDER BY external_id
 LIMIT :limit
