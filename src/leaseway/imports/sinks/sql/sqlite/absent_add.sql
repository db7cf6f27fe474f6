-- Rows that the run did not see. Rows written during the run are not considered: the run may have read their page
-- before, and the writer saw them.
INSERT INTO leaseway_absent (target, source, external_id, sweeps, run)
SELECT :target, :source, stored.external_id, 1, :run
  FROM :table AS stored
 WHERE stored.source = :source AND stored.deleted_at IS NULL AND stored.updated_at < :started_at
   AND NOT EXISTS (SELECT 1 FROM leaseway_seen AS seen WHERE seen.run = :run AND seen.external_id = stored.external_id)
ON CONFLICT (target, source, external_id) DO UPDATE
   SET sweeps = leaseway_absent.sweeps + 1, run = excluded.run
