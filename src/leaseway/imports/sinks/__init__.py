"""Where rows go: a table of SQLite or PostgreSQL, a collection of MongoDB or a folder of Parquet files; and beside it
the books of every import.

columns   which columns the table must have          fitting   a row becomes the values of one line, or a bad row
turns     what one page does to a shard, purely      books     runs, shards and bad rows as lines of SQL
*_tables  table and books: made, brought up to date  whole_pages   the short way through fitting, for plain pages
"""
