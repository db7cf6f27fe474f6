"""For your own tests.

clock                        a clock that you move
provider                     a metered API on loopback
postgres, valkey, mongodb    temporary servers
…_contract                   the contract suites that every store, limiter, ledger and sink must pass
"""
