-- Which job does this idempotency key name? Expired keys count as absent.
SELECT job, fingerprint FROM keys WHERE tenant = :tenant AND key = :key AND expires_at > :now
