"""How far a run is, and what it has done.

progress       snapshots of a running run: share, rate and remaining time
progress_view  snapshots on a terminal, or as lines
report         what one run has done, and the difference between two runs
"""
