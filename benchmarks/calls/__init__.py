"""One HTTP call per job: what a job, a limit and a budget add to a bare client."""
