-- Set a tenant's weight and caps.
INSERT INTO tenants (name, weight, starts, concurrency, is_capped)
VALUES (:name, :weight, :starts, :concurrency, :is_capped)
ON CONFLICT (name) DO UPDATE
   SET weight = excluded.weight, starts = excluded.starts, concurrency = excluded.concurrency,
       is_capped = excluded.is_capped
