"""Many lanes with ready work: what a claim costs if every account has a limit of its own."""
