"""The chapters of the store contract. `job_store_contract` is their table of contents."""
