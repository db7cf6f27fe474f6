-- Remember a key; only an expired one can be in the way.
INSERT INTO keys (tenant, key, job, fingerprint, expires_at)
VALUES (:tenant, :key, :job, :fingerprint, :expires_at)
ON CONFLICT (tenant, key) DO UPDATE
   SET job = excluded.job, fingerprint = excluded.fingerprint, expires_at = excluded.expires_at
