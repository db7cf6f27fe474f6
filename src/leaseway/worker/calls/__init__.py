"""The parts of one call to a provider. `worker/provider_calls.py` puts them together."""
