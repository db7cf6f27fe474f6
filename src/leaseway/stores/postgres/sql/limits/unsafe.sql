-- Tables that a crash would not empty.
SELECT relname FROM pg_class
 WHERE relnamespace = $1::regnamespace AND relname IN ('levels', 'seats', 'fence') AND relpersistence <> 'u'
 ORDER BY relname
