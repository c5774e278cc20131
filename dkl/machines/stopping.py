"""Whether Ctrl-C ends the trials of a choice, whose best is then fitted, or the whole fit."""

from __future__ import annotations

import sys
import threading

import dask

from dkl.errors import gives_hints
from dkl.progress import in_notebook

# Frames of these between a person and a fit say that it is one of many, or that nobody called it himself.
_SEARCHES = ("sklearn", "joblib", "optuna", "dask", "distributed", "dask_ml")


def ends_trials() -> bool:
    """Whether a person called the fit under way himself, in the main thread, and looks on in a terminal or notebook.

    The value False of dask.config "dkl.interrupt-keeps-best" turns it off.
    """
    if not dask.config.get("dkl.interrupt-keeps-best", True):
        return False
    if threading.current_thread() is not threading.main_thread() or not (in_notebook() or _in_terminal()):
        return False
    # searches of dkl silence the hints of their fits
    return gives_hints() and not _in_search()


def _in_terminal() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _in_search() -> bool:
    """Whether another library calls the fit; scikit-learn's callbacks may stand between it and its caller."""
    frame = sys._getframe(1)
    while frame.f_back is not None:
        module = str(frame.f_globals.get("__name__", ""))
        if module.partition(".")[0] in _SEARCHES and not module.startswith("sklearn.callback"):
            return True
        frame = frame.f_back
    return False
