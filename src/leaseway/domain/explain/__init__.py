"""Why jobs wait (`jobs why`, lists of lanes, the dashboard).

closures    why the gate of a lane is closed
reasons     the state of one job, and what to do about it
"""
