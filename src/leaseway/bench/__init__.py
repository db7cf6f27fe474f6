"""`leaseway bench`: how fast leaseway is on this machine and this disk."""
