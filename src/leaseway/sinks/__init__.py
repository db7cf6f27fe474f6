"""Where rows go: a table of the user's in SQLite or PostgreSQL, and beside it the books of every import.

columns   which columns the table must have          fitting   a row becomes the values of one line, or a bad row
turns     what one page does to a shard, purely      books     runs, shards and bad rows as lines of SQL
"""
