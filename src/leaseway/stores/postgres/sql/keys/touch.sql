-- When keys were used last.
SELECT :schema.touch_api_keys($1, $2)
