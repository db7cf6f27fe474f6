-- When keys were used last. A later instant stays.
UPDATE api_keys SET used_at = max(coalesce(used_at, 0), sent.value)
  FROM json_each(:used) AS sent WHERE api_keys.id = sent.key
