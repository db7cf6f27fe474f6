"""What one sees: the same facts in colour on a terminal, plain in a pipe, and as JSON when asked."""
