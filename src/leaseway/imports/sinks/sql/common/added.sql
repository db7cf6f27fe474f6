SELECT external_id
  FROM :table
 WHERE source = :source AND first_seen > :after AND first_seen <= :until
 ORDER BY external_id :bytewise
 LIMIT :limit
