"""Protocols without bodies: what the worker, the service and the command line need from a store, a limiter, a ledger.

store              everything that one store offers, as attributes that are the small ports below; notifications
job_store          submit, exchange and settle jobs; cancel, retry, discard and prune them
reads              read jobs and lanes; inspection: search, recent jobs, statistics, health
definitions        schedules and their fires; weights and caps of tenants; paused lanes
key_store          API keys and browser sessions
limiter            rate and concurrency limits, and their definitions
ledger             holds on budgets, definitions of budgets, balances and the journal
clock              time, randomness and ids
provider_requests  the admission of requests to a provider, and what sends them
telemetry          events and traces

No port has more than eight methods. Each docstring states the promise that an implementation keeps.
"""
