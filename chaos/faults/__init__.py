"""The faults. Each is drawn from the seed before anything runs, so that a seed is a schedule."""
