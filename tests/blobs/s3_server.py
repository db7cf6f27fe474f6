"""An S3 server for tests, in a thread of this process: moto, which implements the protocol in memory."""

import urllib.request
import warnings
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def s3_server() -> Iterator[str]:
    """The endpoint. It has one bucket, named `bucket`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
        server.start()
    host, port = server.get_host_and_port()
    try:
        bucket = urllib.request.Request(f"http://{host}:{port}/bucket", method="PUT")
        urllib.request.urlopen(bucket, timeout=30).close()
        yield f"http://{host}:{port}"
    finally:
        server.stop()
