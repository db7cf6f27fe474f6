"""The history of the work: what happened per minute, hour and day.

rows        counters and histograms that merge
timeline    a range of time as points and totals, for people
"""
