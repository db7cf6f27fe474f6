-- Who submitted a job, for those who trace. Nothing is kept of the others.
ALTER TABLE jobs ADD COLUMN trace TEXT;
