"""What one types: one module per command, declarations only. Each hands over to its verb."""
