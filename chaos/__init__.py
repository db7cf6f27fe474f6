"""Chaos campaigns: real processes, a real store, faults at random moments, and an offline checker.

    ./dev chaos --minutes 5 --seed 7
    ./dev chaos --minutes 5 --store sqlite
    ./dev chaos --minutes 5 --store mongodb

One round, step by step:

    campaign ─► ground ─► fleet (worker, submitter) ─► proxy ─► server | file | members
       └─► plan ─► nemesis ─► faults                          every process writes its history
    campaign ─► stored ─► evidence ─► rules ─► verdict         offline, after all faults are healed and all jobs ended
"""
