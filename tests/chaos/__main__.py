"""Fits of every kind, struck at random moments: `python -m tests.chaos --runs 300` counts what differs from peace.

A run fits one kind of estimator while its driver (a process of its own, on threads) or one of two workers is killed,
stopped, interrupted, sent away or joined by another. A driver that ended begins again on the same checkpoint. Whatever
was learned must have the bits of a fit that nobody disturbed.
"""

from __future__ import annotations

import argparse
import sys
import tempfile

from tests.chaos.fits import KINDS
from tests.chaos.runs import Drivers, Workers, expendable_client


def main() -> int:
    """The runs that the command line asks for; 1 if any differs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--on", choices=["drivers", "workers"], default="drivers")
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--first", type=int, default=0, help="number of the first run: runs repeat by their numbers")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.on == "drivers":
            return _tell(Drivers(folder, f"{folder}/checkpoints"), options)
        with expendable_client() as client:
            return _tell(Workers(folder, client), options)


def _tell(runs: Drivers | Workers, options: argparse.Namespace) -> int:
    for number in range(options.first, options.first + options.runs):
        runs.run(list(KINDS)[number % len(KINDS)], number)
        sys.stdout.write(f"{number} {runs.tally}\n".replace("\n  ", "; "))
        sys.stdout.flush()
    return int(bool(runs.tally.differences))


if __name__ == "__main__":
    sys.exit(main())
