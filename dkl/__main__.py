"""The program `dkl`, also as `python -m dkl`: a Ctrl-C ends it at once and quietly, while it still loads too."""

from __future__ import annotations

import _thread
import os
import sys
import time
from contextlib import suppress
from typing import Any

FAILED, INTERRUPTED = 1, 130
# Seconds after which a Ctrl-C comes again that Python has dropped: the code that dropped it has returned by then.
_AGAIN_AFTER_S = 0.01


def main() -> None:
    """Load the commands and run the one that was asked for.

    After an interruption nobody waits for threads that are within a block: all that must be undone has been.
    """
    sys.unraisablehook = _interrupt_again
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
        _drop_output()
        sys.exit(_code_before(error) if isinstance(error, BrokenPipeError) else FAILED)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):
            # what prints help has met the closed pipe, and ends the program by itself
            _drop_output()
            sys.exit(_code_before(ended.__context__))
        if ended.code != INTERRUPTED:
            raise
        with suppress(OSError):
            sys.stderr.flush()
        os._exit(INTERRUPTED)


def _interrupt_again(dropped: sys.UnraisableHookArgs) -> None:
    """Let a Ctrl-C come again that fell into a destructor or the callback of a weak reference, from which none escapes.

    Python would print a traceback and go on: of some hundred that were sent to a fit, one had no other consequence.
    """
    if isinstance(dropped.exc_value, KeyboardInterrupt):
        # not by `threading`, whose lock the interrupted code may hold
        _thread.start_new_thread(_interrupt_later, ())
    else:
        sys.__unraisablehook__(dropped)


def _interrupt_later() -> None:
    """Interrupt the main thread, after the code that dropped the first interruption has returned."""
    time.sleep(_AGAIN_AFTER_S)
    _thread.interrupt_main()


def _drop_output() -> None:
    """Send what is still in the buffers nowhere: the interpreter would fail once more when it flushes them."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for stream in (1, 2):
        with suppress(OSError):
            os.dup2(nowhere, stream)


def _code_before(closed: BrokenPipeError) -> Any:
    """The exit status that the program would have had if its output had been read to the end."""
    before = closed.__context__
    return before.code if isinstance(before, SystemExit) else 0 if before is None else FAILED


if __name__ == "__main__":
    main()
