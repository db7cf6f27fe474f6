SELECT external_id
  FROM :table
 WHERE source = :source AND deleted_at > :after AND deleted_at <= :until
 ORDER BY external_id :bytewise
 LIMIT :limit
