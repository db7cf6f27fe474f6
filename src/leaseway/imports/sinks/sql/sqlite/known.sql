SELECT external_id, stamp, content_hash, deleted_at IS NOT NULL
  FROM :table
 WHERE source = :source AND external_id IN (SELECT value FROM json_each(:ids))
