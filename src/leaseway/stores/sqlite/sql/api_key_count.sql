-- How many there are: never many.
SELECT count(*) FROM api_keys
