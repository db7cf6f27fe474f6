-- Advance the virtual time of a lane that was served before other lanes of its flow.
UPDATE lanes SET vtime = ? WHERE id = ?
