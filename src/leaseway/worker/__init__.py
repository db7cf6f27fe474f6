"""The worker: one module per step of a job's life.

    submit ─► store ─► exchange ─► admit (lane, limits, budget) ─► run handler ─► settle ─► exchange …

    submit            the handle of a job; a call of it becomes a stored job
    loop              the worker's loop: exchange, drain, leave
    poll              finds out when an exchange would bring jobs
    admission         takes permits and checks budgets for jobs behind gates
    slots             the jobs that a worker holds: claimed, prefetched, running
    run_handler       runs one attempt and turns its end into an outcome
    context           the `ctx` of a handler
    provider_calls    a permit, a hold and a settlement for each call to a provider
    provider_http     `ctx.http`
    settle            an attempt, and its way from an outcome to the store's acknowledgement
    ledger_client     holds and settlements; costs that the ledger has not acknowledged yet
    lease_renewal     extends leases, in a thread of its own
    limiter_client    the worker's permits; permit_queue and limiter_fallback belong to it
    maintenance       fires schedules, prunes jobs, expires holds
    environment       the ports, settings and pace of a worker

Not part of the loop: api_keys, definitions and explain_waits serve the command line and the API.
"""
