"""Commands of the shell, run in the process of a test."""

from __future__ import annotations

import json
from typing import Any

from click.testing import Result as Run
from typer.testing import CliRunner

from dkl.cli.app import app


def dkl_command(*arguments: object) -> Run:
    """Run `dkl ARGUMENTS` in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def facts_of(*arguments: object) -> dict[str, Any]:
    """What a command that succeeds prints with --json."""
    run = dkl_command(*arguments, "--json")
    assert run.exit_code == 0, run.output
    return json.loads(run.stdout)
