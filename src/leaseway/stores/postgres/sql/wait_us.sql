-- How long until an exchange may find something.
SELECT :schema.wait_us($1, $2, $3)
