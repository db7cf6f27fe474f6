-- Lanes from which nothing is claimed until somebody resumes them. An empty tenant stands for all tenants of the queue,
-- also for those who come later.
CREATE TABLE pauses (
  queue TEXT NOT NULL,
  tenant TEXT NOT NULL,
  since INTEGER NOT NULL,
  PRIMARY KEY (queue, tenant)
) WITHOUT ROWID;
