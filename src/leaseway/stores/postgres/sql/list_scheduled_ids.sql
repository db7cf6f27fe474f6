-- Ids of scheduled jobs in the order of submission. The client inserts :conditions.
SELECT id FROM (
  SELECT jobs.id, seq, kind, queue, tenant, state, last_error_code, shard_key
    FROM :schema.jobs JOIN :schema.payloads ON payloads.id = jobs.id JOIN :schema.lanes ON lanes.id = lane
   WHERE state = 'scheduled') AS scheduled
 WHERE :conditions ORDER BY seq LIMIT $1
