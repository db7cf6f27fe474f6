"""Where rows go: a table in SQLite or PostgreSQL, a collection in MongoDB, or a folder of Parquet files, each with the
run tables next to it.

    port               the ports of a sink
    columns            the columns that a table must have
    row_encoding       row ─► values of a line, or a bad row; one row or a whole page at once
    shard_transitions  what a page does to a shard, and which rows changed; pure
    run_tables         runs, shards and bad rows ─► values for statements, and back
    sql_tables         the verbs of the SQL sinks; statements are in `sql/`
    row_map            rows counted on a map
    sqlite, postgres, mongodb, parquet: the sinks
"""
