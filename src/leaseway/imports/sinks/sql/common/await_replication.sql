-- A commit that writes nothing has nothing to wait for.
SELECT 1
