-- The trace contexts of leased jobs. Only the holder of a lease may read them: $1 ids, $2 tokens.
SELECT payloads.id, trace
  FROM unnest($1::text[], $2::text[]) AS held (id, token)
  JOIN :schema.jobs ON jobs.id = held.id AND jobs.token = held.token
  JOIN :schema.payloads ON payloads.id = held.id
 WHERE trace IS NOT NULL
