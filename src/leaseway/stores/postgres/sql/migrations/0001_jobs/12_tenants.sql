-- What was agreed with tenants: in force from the next claim on.

CREATE FUNCTION set_tenant(new_name text, new_weight integer, new_starts text, new_concurrency integer, capped boolean)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path FROM CURRENT AS $$
  INSERT INTO tenants (name, weight, starts, concurrency, is_capped)
  VALUES (new_name, new_weight, new_starts, new_concurrency, capped)
  ON CONFLICT (name) DO UPDATE
     SET weight = excluded.weight, starts = excluded.starts, concurrency = excluded.concurrency,
         is_capped = excluded.is_capped
$$;

CREATE FUNCTION forget_tenant(old_name text) RETURNS boolean LANGUAGE plpgsql SECURITY DEFINER
SET search_path FROM CURRENT AS $$
BEGIN
  DELETE FROM tenants WHERE name = old_name;
  RETURN FOUND;
END $$;
