-- The fence before a call.
SELECT :schema.dispatch_hold($1, $2)
