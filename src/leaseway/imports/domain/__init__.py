"""Pure values and rules of imports, without I/O.

page        pages, rows, bad rows and column types
partition   shards, predicates and cursors; divide a source into shards; `splitting` divides a shard again; `boxes` is
            the geometry
guards      judge a page before it is written
run_state   runs and shards as a sink stores them
drift       profiles of documents, and how they change
jsonpath    paths into JSON documents
timestamps  stamps and durations
"""
