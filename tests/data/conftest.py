"""A server that tests of several modules write to."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.object_store import s3_server


@pytest.fixture(scope="module")
def s3() -> Iterator[dict[str, Any]]:
    """The options with which s3fs finds a real S3 server, one for the tests of a module."""
    with s3_server() as options:
        yield options
