"""A run, from its plan to its report.

plan               shards, and a forecast of rows, requests, time and cost
dry_run            the first page of a plan, written nowhere
watermark          full or incremental, and from when on
assembly           spec ─► source, sink and the task that all shard jobs share
start              the rules for starting and resuming, shared by Python, command line and HTTP
shard_jobs         the job kinds of an import; submitting and finding shard jobs
import_shard       fetch pages until the shard ends: retries, confirmation of the end, splitting for idle workers
page_writes        page and verdict ─► what is written
finish_run         the end of a run: its state, and deletes of rows that the source no longer has
importer           the Python interface: `@app.importer`
quarantine_replay  build rows from bad rows again
progress           snapshots of a running run: share, rate and remaining time
progress_view      snapshots on a terminal, or as lines
report             what one run has done, and the difference between two runs
"""
