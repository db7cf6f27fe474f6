SELECT array(SELECT attname::text FROM pg_attribute WHERE attrelid = indrelid AND attnum = ANY (indkey[:indnkeyatts - 1]))
  FROM pg_index
 WHERE indrelid = CAST($1 AS oid) AND indisunique AND indisvalid AND indpred IS NULL AND indexprs IS NULL
