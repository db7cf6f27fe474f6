"""leaseway import: one module per command, and what they share."""
