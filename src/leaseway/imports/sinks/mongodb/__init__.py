"""A sink for MongoDB.

sink          the port
connection    one client per event loop; transactions and retries
collections   the collections, their indexes and checks
rows          row ─► BSON fields; merge the rows of a page
runs, shards  the run tables, and quarantine
sweep         rows that a complete run did not see; changes between two instants
"""

from leaseway.imports.sinks.mongodb.sink import MongoSink

__all__ = ["MongoSink"]
