"""The store, the limiter and the ledger in one PostgreSQL schema.

store       the job store, composed of one class per port
jobs        submit, exchange, renew, settle; operations on jobs
reads       job lists, lanes and inspection
definitions, keys, limits, budgets      schedules, tenants, pauses and the other ports
database    what these classes share: connections, statements, clock, notifications
connection  connections per event loop, timeouts; `address` and `errors` belong to it
notify      LISTEN and NOTIFY, and the designated poller
submit      group commit
schema      migrations; the schema itself is in `schema/`, one script per topic
statements  every statement by verb; queries that read tables are in `sql/`
rows        arguments and answers of the functions
health      the checks of `leaseway doctor`
"""
