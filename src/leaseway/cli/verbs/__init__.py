"""What a command does, between what was typed and what is shown."""
