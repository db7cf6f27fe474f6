SELECT count(*)
  FROM :table
 WHERE source = :source AND deleted_at IS NULL
