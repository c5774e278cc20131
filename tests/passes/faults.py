"""Faults as a table of attempts: what happens to a block at its first, second, ... reading, counted over processes."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from dkl.protocols.block import Block
from dkl.protocols.source import PARTS
from tests.passes.sources import make_block

OK, DELAY, TRANSIENT, BROKEN, KILL = "ok", "delay", "transient", "broken", "kill"
SEGFAULT, EXIT = "segfault", "exit"


@dataclass(frozen=True)
class FaultyReader:
    """Reads block b at its k-th attempt as `table[b][k]` says; the last entry, or `otherwise`, holds from then on."""

    rows: tuple[int, ...]
    folder: str
    table: Mapping[int, tuple[str, ...]]
    otherwise: str = OK

    def load(self, ticket: int, parts: tuple[str, ...] = PARTS) -> Block:
        attempt = self._count(int(ticket))
        outcomes = self.table.get(int(ticket), (self.otherwise,))
        outcome = outcomes[min(attempt, len(outcomes) - 1)]
        if outcome == DELAY:
            time.sleep(0.02)
        if outcome == TRANSIENT:
            raise OSError("connection reset by peer")
        if outcome == BROKEN:
            raise ValueError("X[3, 1] is NaN")
        if outcome == KILL:
            os.kill(os.getpid(), signal.SIGKILL)
        if outcome == SEGFAULT:
            os.kill(os.getpid(), signal.SIGSEGV)
        if outcome == EXIT:
            sys.exit(1)
        return make_block(int(ticket), self.rows[ticket])

    def _count(self, block: int) -> int:
        attempt = 0
        while True:
            try:
                os.close(os.open(f"{self.folder}/{block}-{attempt}", os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                attempt += 1
            else:
                return attempt

    @property
    def attempts(self) -> dict[int, int]:
        """How often each block was read."""
        counts: dict[int, int] = {}
        for path in Path(self.folder).iterdir():
            block = int(path.name.split("-")[0])
            counts[block] = counts.get(block, 0) + 1
        return counts


class Killer:
    """SIGKILLs one worker of a local cluster, some time after it is started."""

    def __init__(self, cluster: Any, after: float, which: int = 0) -> None:
        self._pids = [worker.process.pid for worker in cluster.workers.values()]
        self._which = which % len(self._pids)
        self._timer = threading.Timer(after, self._kill)

    def _kill(self) -> None:
        os.kill(self._pids[self._which], signal.SIGKILL)

    def __enter__(self) -> Killer:
        self._timer.start()
        return self

    def __exit__(self, *exception: Any) -> None:
        self._timer.join()
        while _exists(self._pids[self._which]):
            time.sleep(0.01)
        time.sleep(0.1)  # the nanny notices


def _exists(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().split()[2] != "Z"
    except FileNotFoundError:
        return False


def slow_sums(block: Block, operands: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Sums that take 4 ms a block, so that a fault finds a pass under way."""
    from tests.passes.sources import block_moments

    time.sleep(operands.get("pause", 0.004))
    return block_moments(block, operands)


def slow_step(state: np.ndarray, piece: Any, operands: Mapping[str, Any]) -> np.ndarray:
    from tests.passes.sources import chained

    time.sleep(0.004)
    return chained(state, piece, operands)
