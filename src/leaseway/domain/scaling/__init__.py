"""How many workers a pool needs, and why.

demand: what the load needs, within the bounds of limits, budgets and caps
decision: what to run now, given what ran and what was needed before
agreement: how the supervisors of one pool share a decision
"""
