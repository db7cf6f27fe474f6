-- Remember a failed attempt.
INSERT INTO errors (job, attempt, at, code, message, traceback) VALUES (?, ?, ?, ?, ?, ?)
