SELECT attname::text, format_type(atttypid, atttypmod),
       attnotnull AND NOT atthasdef AND attidentity = '' AND attgenerated = ''
  FROM pg_attribute
 WHERE attrelid = CAST($1 AS oid) AND attnum > 0 AND NOT attisdropped
 ORDER BY attnum
