"""For your own tests: a clock that you move; `provider`, a metered API on loopback; `standin`, an API to import from;
`postgres` and `valkey`, throw-away servers; and the contracts that every store, limiter, ledger and sink must keep."""
