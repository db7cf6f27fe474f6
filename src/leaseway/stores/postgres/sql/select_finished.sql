-- Ids of finished jobs in the order of their submission. The store fills in the conditions.
SELECT id FROM (
  SELECT history.id, seq, kind, queue, tenant, stage, last_error_code, shard_key
    FROM :schema.history JOIN :schema.lanes ON lanes.id = lane) AS finished
 WHERE :conditions ORDER BY seq LIMIT $1
