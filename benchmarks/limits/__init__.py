"""Limits and budgets beside other limiters: what a provider receives, and what the guarantee costs."""
