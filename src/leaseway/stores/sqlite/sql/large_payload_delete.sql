-- Delete the payload of a job that was deleted.
DELETE FROM large_payloads WHERE seq = ?
