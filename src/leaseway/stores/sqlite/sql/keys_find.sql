-- Which jobs do these idempotency keys name? Expired keys count as absent.
SELECT key, job FROM keys
 WHERE tenant = :tenant AND key IN (SELECT value FROM json_each(:keys)) AND expires_at > :now
