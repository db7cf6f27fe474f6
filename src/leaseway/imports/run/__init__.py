"""Start, resume and finish runs.

start              the rules for starting and resuming, shared by Python, command line and HTTP
shard_jobs         the job kinds of an import; submitting and finding shard jobs
finish_run         the end of a run: its state, and deletes of rows that the source no longer has
importer           the Python interface: `@app.importer`
quarantine_replay  build rows from bad rows again
"""
