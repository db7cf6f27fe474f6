"""read model ─► [API] ─► dashboard, programs, workers anywhere

    request ─► host ─► caller (key or token) ─► scope ─► tenant's rate ─► strict body ─► flow ─► answer, or a problem

service    puts it together        routes    a route has a scope, or does not start
callers    who asks                bodies    strict JSON, bounded
problems   RFC 9457                cursors   opaque, signed places in a list
"""
