"""Budgets.

budget              `Budget`, its stored definition, and amounts
calendar_windows    the minute, hour, day, week or month that contains an instant
holds               the rules for holds: hold, dispatch, settle, capture, void
rebooking           booked holds that move to an earlier window; how the id of a hold names its job
balances            what is spent and held per window, the journal, the audit
"""
