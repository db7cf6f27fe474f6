-- Set a tenant's weight, caps and quotas.
INSERT INTO tenants (name, weight, starts, concurrency, is_capped, quotas)
VALUES (:name, :weight, :starts, :concurrency, :is_capped, :quotas)
ON CONFLICT (name) DO UPDATE
   SET weight = excluded.weight, starts = excluded.starts, concurrency = excluded.concurrency,
       is_capped = excluded.is_capped, quotas = excluded.quotas
