-- Nothing is agreed any more.
SELECT :schema.forget_tenant($1)
