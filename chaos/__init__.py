"""Chaos campaigns: real processes, a real PostgreSQL, faults at random moments, and an offline checker.

    ./dev chaos --minutes 5 --seed 7

One round, step by step:

    campaign ─► fleet (worker, submitter) ─► proxy ─► server
       └─► plan ─► nemesis ─► faults                          every process writes its history
    campaign ─► stored ─► evidence ─► rules ─► verdict         offline, after all faults are healed and all jobs ended
"""
