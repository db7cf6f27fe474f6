-- Each level as it stands now.
SELECT * FROM :schema.look($1, $2, $3)
