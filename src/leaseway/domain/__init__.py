"""Values and decisions. Pure: no clock, no chance, no I/O, no logging."""
