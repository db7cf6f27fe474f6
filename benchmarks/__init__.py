"""leaseway beside its peers and beside plain database drivers, in one run, on one machine."""
