-- The job that an idempotency key names. $1 tenant, $2 key, $3 now (NULL: the server's).
SELECT job FROM :schema.idempotency_keys
 WHERE tenant = $1 AND key = $2 AND expires_at > coalesce($3::bigint, :schema.now_us())
