"""Where jobs, lanes and schedules live. Each store passes the contract in `leaseway.testing`, or is not a store.

memory, sqlite, postgres, http    stores; the first three hold limits and budgets, too
redis                             limits only
caller_connection                 the connections in whose transactions users submit jobs
event_loops                       notifications and clients for several event loops of one process
keys                              what the stores share about API keys
python_limiter                    what the limiters in memory and SQLite share
"""
