"""`leaseway demo`: import 235,000 places with a fleet of workers, kill one of them, and verify the result.

runner     the demo from start to verdict
fleet      its processes: one provider, and a fleet of workers
spec       its import spec, and the files in its folder
verify     counts the rows again, from the table, the provider's rows and its journal
report     prints the verdict, with a `world_map` of the rows
"""
