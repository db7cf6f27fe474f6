-- The job that a key stands for.
SELECT job FROM :schema.keys WHERE tenant = $1 AND key = $2 AND expires_at > coalesce($3::bigint, :schema.now_us())
