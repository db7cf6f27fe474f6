-- The failed attempts of a job, oldest first.
SELECT job, attempt, at, code, message, traceback FROM errors WHERE job = :job ORDER BY rowid
