-- Take back one expired lease. The condition is checked again where it is written.
UPDATE jobs
   SET stage = ?2,
       finished_at = CASE WHEN ?2 > 2 THEN ?3 END,
       last_error_code = coalesce(?4, last_error_code),
       last_error_at = CASE WHEN ?4 IS NULL THEN last_error_at ELSE ?3 END,
       token = NULL, owner = NULL, until = NULL
 WHERE seq = ?1 AND stage = 2 AND until <= ?3
