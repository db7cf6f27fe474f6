"""`leaseway demo`: import 235,000 places with several workers, kill one of them, and verify the result.

runner     the demo from start to verdict
fleet      its processes: one provider, several workers (`worker` is their main function)
spec       its import spec, and the files in its folder
observe    reads the provider and the store from outside, while the demo runs
verify     counts the rows again, from the table, the provider's rows and its journal
report     prints the verdict, with a `world_map` of the rows
"""
