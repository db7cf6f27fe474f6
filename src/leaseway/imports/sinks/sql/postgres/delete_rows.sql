UPDATE :table
   SET deleted_at = :now, deleted_reason = :reason, run = :run, updated_at = :now
 WHERE source = :source AND deleted_at IS NULL AND external_id = ANY (CAST(:ids AS text[]))
RETURNING 1
