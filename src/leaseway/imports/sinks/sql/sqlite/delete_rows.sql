UPDATE :table
   SET deleted_at = :now, deleted_reason = :reason, run = :run, updated_at = :now
 WHERE source = :source AND deleted_at IS NULL AND external_id IN (SELECT value FROM json_each(:ids))
RETURNING 1
