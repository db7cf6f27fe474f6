-- The fence; nothing if it is gone.
SELECT since FROM :schema.fence WHERE made_in = tableoid
