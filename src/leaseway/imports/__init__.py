"""Imports: read a paginated source completely and store every record once.

plan ─► shard jobs ─► page ─► rows and cursor in one transaction ─► end of the run

    spec/        what a user writes: the TOML file or the options of `@app.importer`, with all checks
    plan/        which part of the source a run reads, divided into shards
    run/         start, resume and finish a run; the Python interface; quarantine replay
    shard_job/   the job that imports one shard, page by page
    sources/     where pages come from: HTTP APIs, files, functions
    sinks/       where rows and the state of runs are stored
    progress/    how far a run is, and what it has done
    domain/      pure values and rules
    assembly     spec ─► source, sink and shard task
    rows         record ─► row or bad row
"""
