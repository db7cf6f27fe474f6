"""Counters of this process, and the text format of Prometheus.

request_metrics   requests by route and status, their duration, and the access log
job_counters      submissions, exchanges and settlements that passed through this process, and finished jobs
prometheus_text   the text format
"""
