"""The program `dkl`, also as `python -m dkl`: a Ctrl-C ends it at once and quietly, while it still loads too."""

from __future__ import annotations

import os
import sys

INTERRUPTED = 130


def main() -> None:
    """Load the commands and run the one that was asked for.

    After an interruption nobody waits for threads that are within a block: all that must be undone has been.
    """
    try:
        from dkl.cli.app import main as run

        run()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except SystemExit as ended:
        if ended.code != INTERRUPTED:
            raise
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
