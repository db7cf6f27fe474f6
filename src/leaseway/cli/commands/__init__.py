"""One module or folder per command: its options, and what it does."""
