-- Where jobs came from, asked by those who hold them.
SELECT payloads.id, trace
  FROM unnest($1::text[], $2::text[]) AS held (id, token)
  JOIN :schema.jobs ON jobs.id = held.id AND jobs.token = held.token
  JOIN :schema.payloads ON payloads.id = held.id
 WHERE trace IS NOT NULL
