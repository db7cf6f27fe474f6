-- The jobs that idempotency keys name. $1 tenant, $2 keys, $3 now (NULL: the server's).
SELECT key, job FROM :schema.idempotency_keys
 WHERE tenant = $1 AND key = ANY ($2::text[]) AND expires_at > coalesce($3::bigint, :schema.now_us())
