"""read model ─► [API] ─► dashboard, programs, workers on other machines

    request ─► server ─► middleware (host, origin, caller, rate limit) ─► routing (scope) ─► route ─► response

app              the FastAPI application: routes, middleware, error handlers
server           uvicorn with a graceful shutdown
connections      how many connections there may be, and how much and how slowly a client may send or read
middleware       runs before every route: request id, host and origin checks, authentication, rate limit, tracing
routing          declares routes together with the scope that each one requires; turns what they return into JSON
service          what routes work with: store, authentication, rate limits, imports, live stream
settings         the options of `leaseway serve`, and the limits of the live stream
request_body     strict, bounded JSON        pagination  signed cursors        preconditions  ETag, If-Match
errors           RFC 9457 problems           openapi     the OpenAPI document  ttl_cache      a bounded cache
inspection       reads shared by routes, metrics and the live stream
submit_batcher   group commit for single submissions
metering         the limits and budgets that workers of one tenant may use
metrics          counters of this process, the access log, and the Prometheus text format

auth/            API keys, JWTs, sessions, origin checks, rate limits of tenants
routes/          the routes, by resource
schemas/         the structs that routes return; the command line's --json uses them as well
imports/         the imports that the service knows, and how their runs progress
worker_protocol/ the store's verbs over HTTP, for workers that have no access to the database
live/            changes as they happen, over WebSocket and server-sent events
"""
