"""Budgets.

budget              `Budget`, its stored definition, and amounts
calendar_windows    the hour, day, week or month that contains an instant
holds               the rules for holds: hold, dispatch, settle, capture, void
balances            what is spent and held per window, the journal, the audit
"""
