"""Pure rules by noun: no clock, no randomness, no I/O, no logging.

ids, errors, validators     identifiers, the error tree, checks of values that users give, JSON included
job, kind                   a job's record; its kind, options, and what a kind declares
signature/                  the types of a handler's arguments and result
exchange, outcome           what a worker and a store exchange; how an attempt ends, and retries
lane, explain               fair queueing and pauses; why a lane is closed, and why a job waits
requirements                the limits and budgets that jobs need
limits/, budgets/           rate limits and buckets; budgets, holds and balances
schedule, tenant            cron schedules; a tenant's weight and caps
store_clock                 what time it is when a machine's clock is set back
identity                    callers with roles and scopes, their API keys and sessions
health, inspection          health checks; filters, searches and summaries
"""
