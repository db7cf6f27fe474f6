"""One file, many processes: jobs, limits and budgets in SQLite.

store       the job store, composed of one class per port
jobs        submit, exchange, renew, checkpoint
operations  cancel, retry, discard, prune
reads       job lists, lanes and inspection
definitions, keys, limits, budgets      schedules, tenants, pauses and the other ports
database    what these classes share: transactions, statements, rows, clock, notifications
connection  the writer thread and the reader thread; `errors` belongs to it
schema      migrations
health      the checks of `leaseway doctor`
backup      copies of a file that is in use
"""
