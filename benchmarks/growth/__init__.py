"""What changes with size: of the payloads, and of the history that is kept."""
