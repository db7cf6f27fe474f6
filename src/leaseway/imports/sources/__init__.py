"""Where pages come from. A source sends requests only through the client that it is given.

port            the port of a source, its capabilities and errors
factory         spec ─► source
http_json       any JSON API, described by a spec
paging          cursors and their parameters: keyset, offset, page number, link, token
predicates      shard predicate ─► request parameters and record filters
status_mapping  HTTP status ─► error
ocm             Open Charge Map
files           JSON lines and CSV
function        a page function as a source
"""
