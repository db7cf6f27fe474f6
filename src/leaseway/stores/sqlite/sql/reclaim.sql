-- End one expired lease. The condition is checked again at the write.
UPDATE jobs
   SET state = :state,
       finished_at = CASE WHEN :state IN ('failed', 'cancelled') THEN :now END,
       last_error_code = coalesce(:code, last_error_code),
       last_error_at = CASE WHEN :code IS NULL THEN last_error_at ELSE :now END,
       token = NULL, owner = NULL, until = NULL
 WHERE seq = :seq AND state = 'leased' AND until <= :now
