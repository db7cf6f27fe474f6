-- Store the progress of a running job.
UPDATE jobs SET progress = :progress WHERE id = :id AND token = :token
