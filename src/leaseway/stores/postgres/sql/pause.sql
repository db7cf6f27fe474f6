-- Stop or resume a schedule.
SELECT :schema.pause($1, $2, $3)
