"""Decide what a run reads.

plan          shards, and a forecast of rows, requests, time and cost
watermark     full or incremental, and from when on
"""
