-- Keep how far a running job has come.
UPDATE jobs SET progress = :progress WHERE id = :id AND token = :token
