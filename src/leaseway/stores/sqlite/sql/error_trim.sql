-- Of each job only the newest errors are kept.
DELETE FROM errors WHERE rowid IN (
  SELECT rowid FROM errors WHERE job = ? ORDER BY rowid DESC LIMIT -1 OFFSET ?)
