"""`leaseway bench`: measure the speed of leaseway on this machine and disk."""
