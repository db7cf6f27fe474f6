SELECT external_id
  FROM :table
 WHERE source = :source AND updated_at > :after AND updated_at <= :until AND first_seen <= :after
   AND deleted_at IS NULL
 ORDER BY external_id :bytewise
 LIMIT :limit
