"""Real processes, a real PostgreSQL, and faults at random moments; a checker judges what everybody wrote down.

    ./dev chaos --minutes 5 --seed 7

The way through, in the order in which a round goes:

    campaign ─► fleet (worker, submitter) ─► proxy ─► server
        └─► plan ─► nemesis ─► faults                          everybody writes: history
    campaign ─► stored ─► evidence ─► rules ─► verdict         offline, when all is healed and drained
"""
