"""Blob stores: a folder, or a bucket that speaks the protocol of S3."""
