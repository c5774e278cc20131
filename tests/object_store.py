"""A server that tests of several modules write to."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def s3_server() -> Iterator[dict[str, Any]]:
    """A real S3 server with an empty bucket, "bucket"; the options with which s3fs finds it."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import s3fs
        from moto.server import ThreadedMotoServer

        server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
        server.start()
    host, port = server.get_host_and_port()
    options = {"key": "k", "secret": "s", "endpoint_url": f"http://{host}:{port}"}
    s3fs.S3FileSystem(**options).call_s3("create_bucket", Bucket="bucket")
    try:
        yield options
    finally:
        server.stop()
