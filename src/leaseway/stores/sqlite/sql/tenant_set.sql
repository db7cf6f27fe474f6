-- What was agreed with a tenant, from now on.
INSERT INTO tenants (name, weight, starts, concurrency, is_capped)
VALUES (:name, :weight, :starts, :concurrency, :is_capped)
ON CONFLICT (name) DO UPDATE
   SET weight = excluded.weight, starts = excluded.starts, concurrency = excluded.concurrency,
       is_capped = excluded.is_capped
