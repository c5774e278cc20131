"""Imported once by the process that drivers are forked from: no thread, whose locks its children would inherit."""

from __future__ import annotations

import importlib
import threading

from tests.chaos.fits import KINDS

MODULES = ("dkl.passes.loop", "dkl.linear.fitting", "dkl.linear.fitting", "dkl.linear.epochs", "dkl.data.store.reader")
for name in MODULES:
    importlib.import_module(name)
for make in KINDS.values():
    make()

if threading.active_count() > 1:
    raise RuntimeError(f"a process that others are forked from has threads: {threading.enumerate()}")
