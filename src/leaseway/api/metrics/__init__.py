"""Counters of this process, and the text format of Prometheus.

request_metrics   requests by route and status, their duration, and the access log
work_counters     submissions, exchanges and settlements that passed through this process
outcome_counters  jobs that finished, as counters that never decrease
prometheus_text   the text format
"""
