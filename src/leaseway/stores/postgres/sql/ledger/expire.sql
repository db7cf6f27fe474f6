-- End holds past their deadline.
SELECT * FROM :schema.expire_holds($1, $2)
