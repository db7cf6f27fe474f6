"""KEDA ─► [external scaler over gRPC] ─► scaling.pools ─► store

messages    the messages of KEDA's service, by field numbers
scaler      the four calls, answered from pools
server      the gRPC server, its TLS and its health check
"""
