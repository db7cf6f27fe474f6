"""Where pages come from. A source sends requests only through the client that it is given.

port               the port of a source, its capabilities and errors
factory            spec ─► source
http_json          any JSON API, described by a spec
credentials        secrets ─► headers and parameters
leased_token       a refresh token that the whole fleet shares
paging             cursors and their parameters: keyset, link, token
positional_paging  the same for offsets and page numbers, which can be wrong when records move
predicates         shard predicate ─► request parameters and record filters
status_mapping     HTTP status ─► error
ocm                Open Charge Map
files              JSON lines and CSV
function           a page function as a source
"""
