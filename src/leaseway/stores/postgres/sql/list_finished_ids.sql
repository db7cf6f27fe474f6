-- Ids of finished jobs in the order of submission. The client inserts :conditions.
SELECT id FROM (
  SELECT history.id, seq, kind, queue, tenant, state, last_error_code, shard_key
    FROM :schema.history JOIN :schema.lanes ON lanes.id = lane) AS finished
 WHERE :conditions ORDER BY seq LIMIT $1
