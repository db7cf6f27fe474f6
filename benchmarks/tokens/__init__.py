"""How much of a limit on tokens is used, and whether the provider ever refuses."""
