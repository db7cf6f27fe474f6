"""A store in a MongoDB database: a replica set or a sharded cluster, because transactions need one.

errors        what errors of PyMongo and of the server mean
connection    clients, transactions, the server's time
schema        collections, validators, indexes and their version
database      a transaction that moves jobs; what several ports share
documents     jobs as documents, and back
lanes         counters and virtual times, changed by inserted documents
submit, settle, claim   the steps of a job's life, each within an open transaction
store         all ports: jobs, operations, reads, definitions, keys, notify, health; limits and budgets are beside it
"""
