-- Tables of the limiter that would survive a crash, although they must be UNLOGGED.
SELECT relname FROM pg_class
 WHERE relnamespace = $1::regnamespace AND relname IN ('levels', 'in_flight_calls', 'limiter_fence') AND relpersistence <> 'u'
 ORDER BY relname
