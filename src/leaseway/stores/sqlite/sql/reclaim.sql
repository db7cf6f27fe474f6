-- Take back one expired lease. The condition is checked again where it is written.
UPDATE jobs
   SET stage = :stage,
       finished_at = CASE WHEN :stage > 2 THEN :now END,
       last_error_code = coalesce(:code, last_error_code),
       last_error_at = CASE WHEN :code IS NULL THEN last_error_at ELSE :now END,
       token = NULL, owner = NULL, until = NULL
 WHERE seq = :seq AND stage = 2 AND until <= :now
