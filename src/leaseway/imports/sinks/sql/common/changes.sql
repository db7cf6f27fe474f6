SELECT count(CASE WHEN first_seen > :after AND first_seen <= :until THEN 1 END),
       count(CASE WHEN updated_at > :after AND updated_at <= :until AND first_seen <= :after AND deleted_at IS NULL
                  THEN 1 END),
       count(CASE WHEN deleted_at > :after AND deleted_at <= :until THEN 1 END)
  FROM :table
 WHERE source = :source
