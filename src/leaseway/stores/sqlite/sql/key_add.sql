-- Store a key. Only an expired key can be in its place.
INSERT INTO keys (tenant, key, job, fingerprint, expires_at)
VALUES (:tenant, :key, :job, :fingerprint, :expires_at)
ON CONFLICT (tenant, key) DO UPDATE
   SET job = excluded.job, fingerprint = excluded.fingerprint, expires_at = excluded.expires_at
