-- What the code says.
SELECT :schema.declare_limits($1, $2)
