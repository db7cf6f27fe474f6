"""Limits and budgets beside other limiters: what a provider sees, and what it costs to be sure of it."""
