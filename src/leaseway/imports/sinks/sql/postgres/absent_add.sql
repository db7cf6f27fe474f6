-- Rows that the run did not see. Rows written during the run are not considered: the run may have read their page
-- before, and the writer saw them. Ids are compared bytewise, whatever the collation of the table, and inserted in this
-- order, so that two sweeps cannot deadlock.
INSERT INTO leaseway_absent AS absent (target, source, external_id, sweeps, run)
SELECT CAST(:target AS text), CAST(:source AS text), stored.external_id, 1, CAST(:run AS text)
  FROM :table AS stored
 WHERE stored.source = :source AND stored.deleted_at IS NULL AND stored.updated_at < :started_at
   AND NOT EXISTS (
         SELECT 1
           FROM leaseway_seen AS seen
          WHERE seen.run = :run AND seen.external_id COLLATE "C" = stored.external_id COLLATE "C"
       )
 ORDER BY stored.external_id COLLATE "C"
ON CONFLICT (target, source, external_id) DO UPDATE
   SET sweeps = absent.sweeps + 1, run = excluded.run
