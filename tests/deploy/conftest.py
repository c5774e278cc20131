"""Programs that a test needs beside Python."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def program() -> Callable[[str], str]:
    """The path of a program, of this environment or of the system; the test is skipped where there is none."""

    def find(name: str) -> str:
        path = shutil.which(name, path=f"{Path(sys.executable).parent}:{os.environ['PATH']}:/usr/sbin")
        if path is None:
            pytest.skip(f"{name} is not installed")
        return path

    return find
