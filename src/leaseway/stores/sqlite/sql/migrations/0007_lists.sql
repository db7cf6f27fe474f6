-- The list of a small tenant among a million jobs of others. Neither column ever changes: it costs submissions only.
CREATE INDEX jobs_of_lane ON jobs (lane, id);
