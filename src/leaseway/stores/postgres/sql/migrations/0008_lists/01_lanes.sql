-- The list of a small tenant among a million jobs of others. Ready jobs are found by their lane already, leased ones are few.
CREATE INDEX jobs_scheduled_of_lane ON jobs (lane, id) WHERE stage = 1;
CREATE INDEX history_lane ON history (lane, id);
