"""store ─► [observe] ─► [domain.scaling] ─► [fleet of processes | GET /v1/scale]

observe: a snapshot of a pool, from counters and definitions
fleet: worker processes on one machine
pools: the answers for orchestrators
agree: one decision for all supervisors of a pool
chart: the picture of `leaseway scale simulate --svg`
plant: a model of a pool in virtual time, for `leaseway scale simulate` and for tests
"""
