"""Where the CPU time of a job goes, from submit to settle, on each store."""
