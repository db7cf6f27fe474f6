"""Rows in a collection of MongoDB, and the books of the imports in collections beside it.

address   which database, and what may be shown       clients    one client for each event loop; transactions
failures  the driver's errors in our words            fitting    a row becomes fields that MongoDB takes
places    where rows and books are, and their shape   rows       rows that are news are written, and counted once
runs, shards, quarantine: the books                  sweeping   what a complete run did not see
sink      the port
"""

from leaseway.imports.sinks.mongodb.sink import MongoSink

__all__ = ["MongoSink"]
