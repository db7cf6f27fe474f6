"""What may happen. A fault is drawn from chance before anything runs, so that a seed is a schedule."""
