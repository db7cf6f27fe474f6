"""Imports: read a paginated source completely and store every record once.

plan ─► shard jobs ─► page ─► rows and cursor in one transaction ─► end of the run

    spec/        what a user writes: the TOML file or the options of `@app.importer`, with all checks
    run/         a run from its plan to its report: shards, pages, the end of the run, progress
    sources/     where pages come from: HTTP APIs, files, functions
    sinks/       where rows and the state of runs are stored
    domain/      pure values and rules
    rows         record ─► row or bad row
"""
