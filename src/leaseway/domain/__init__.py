"""Pure rules by noun: no clock, no randomness, no I/O, no logging.

ids, errors, validators     identifiers, the error tree, checks of values that users write
job, kind, payload          a job's record, its kind and options, its JSON
exchange, outcome           what a worker and a store exchange; how an attempt ends, and retries
lane, gates, explain        fair queueing and pauses; why a lane is closed; why a job waits
requirements                the limits and budgets that jobs need
limits/, budgets/           rate limits and buckets; budgets, holds and balances
schedule, tenant            cron schedules; a tenant's weight and caps
identity, api_key           callers with roles and scopes; API keys and sessions
health, inspection          health checks; filters, searches and summaries
"""
