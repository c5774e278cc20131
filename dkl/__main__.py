"""The program `dkl`, also as `python -m dkl`: a Ctrl-C ends it at once and quietly, while it still loads too."""

from __future__ import annotations

import os
import sys
from contextlib import suppress

FAILED, INTERRUPTED = 1, 130


def main() -> None:
    """Load the commands and run the one that was asked for.

    After an interruption nobody waits for threads that are within a block: all that must be undone has been.
    """
    try:
        try:
            from dkl.cli.app import main as run

            run()
        finally:
            if sys.stdout is not None:
                sys.stdout.flush()
    except KeyboardInterrupt:
        os._exit(INTERRUPTED)
    except OSError as error:
        # Commands report their own failures, so an error that arrives here is of the output itself: a full disk, or a
        # reader that has gone. Whoever closed a pipe (``| head``) has read enough and hears nothing.
        with suppress(OSError):
            if not isinstance(error, BrokenPipeError):
                os.write(2, f"Error: the output cannot be written: {error.strerror or error}\n".encode())
        # What is still in the buffers goes nowhere, or the interpreter would fail once more when it flushes them.
        nowhere = os.open(os.devnull, os.O_WRONLY)
        for stream in (1, 2):
            with suppress(OSError):
                os.dup2(nowhere, stream)
        sys.exit(FAILED)
    except SystemExit as ended:
        if ended.code != INTERRUPTED:
            raise
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(INTERRUPTED)


if __name__ == "__main__":
    main()
