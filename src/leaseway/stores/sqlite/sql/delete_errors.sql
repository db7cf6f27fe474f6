-- Forget the errors of a job.
DELETE FROM errors WHERE job = ?
