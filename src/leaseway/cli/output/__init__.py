"""Output: coloured on a terminal, plain in a pipe, JSON on request."""
