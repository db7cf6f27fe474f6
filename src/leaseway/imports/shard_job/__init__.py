"""The job that imports one shard.

import_shard  fetch pages until the shard ends: retries, confirmation of the end, splitting for idle workers
page_writes   page and verdict ─► what is written
"""
