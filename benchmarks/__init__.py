"""leaseway beside its peers and beside bare sqlite3, in one run, on one machine."""
