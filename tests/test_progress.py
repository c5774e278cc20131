"""Progress: drawn only where somebody looks on, heard by the log, harmless when work fails."""

from __future__ import annotations

import io
import logging

import dask
import numpy as np
import pytest
from rich.console import Console

import dkl
from dkl.events import Event
from dkl.passes.engine import run_pass
from dkl.progress import LOG, ProgressBar, Tally, listening, log_event, resolve_progress
from dkl.protocols.records import Accumulator, BlockSum


def told(n: int, name: str = "potentials", **last: object) -> list[Event]:
    steps = [Event("advanced", name, done, n) for done in range(1, n + 1)]
    return [Event("started", name, 0, n), *steps, Event("finished", name, n, n, detail=last)]


def drawn(events: list[Event]) -> tuple[ProgressBar, str]:
    out = io.StringIO()
    bar = ProgressBar(Console(file=out, force_terminal=True, width=90))
    for event in events:
        bar(event)
    return bar, out.getvalue()


def test_a_bar_shows_the_work_by_name_and_count():
    bar, text = drawn(told(8))
    assert "potentials" in text
    assert "8/8" in text
    assert bar._bar is None


def test_a_failed_stretch_of_work_ends_its_bar():
    bar, text = drawn([*told(8)[:4], Event("finished", "potentials", 3, 8, detail={"failed": True})])
    assert "3/8" in text
    assert bar._bar is None


def test_rounds_show_where_they_stand_once_they_know_it():
    rounds = [
        Event("advanced", "rounds", 3, detail={"duality_gap": 0.25, "loss": 0.123456}),
        Event("finished", "rounds", 3),
    ]
    text = drawn([Event("started", "rounds"), *told(2), *rounds])[1]
    assert "duality gap 0.25  loss 0.123" in text
    # counts that a pass keeps are for the history
    hits = [Event("started", "potentials", 0, 2), Event("advanced", "potentials", 1, 2, detail={"cache_hits": 7})]
    assert "hits" not in drawn([*hits, Event("finished", "potentials", 2, 2)])[1]


def test_many_epochs_do_not_fill_the_screen():
    events = [Event("started", "rounds")]
    for epoch in range(30):
        events += told(2, f"epoch {epoch}")
    out = io.StringIO()
    bar = ProgressBar(Console(file=out, force_terminal=True, width=90))
    for event in events:
        bar(event)
    assert len(bar._lines) <= 8
    bar(Event("finished", "rounds", 30))
    assert bar._bar is None


def test_a_note_is_said_with_or_without_a_bar():
    note = Event("note", "ingest", detail={"message": "12 columns [one-hot]"})
    assert "12 columns [one-hot]" in drawn([note])[1]
    assert "12 columns [one-hot]" in drawn([*told(3)[:2], note, told(3)[-1]])[1]


def test_nothing_is_drawn_where_nobody_looks_on(capsys):
    for event in told(3):
        resolve_progress()(event)
        resolve_progress(False)(event)
    assert capsys.readouterr() == ("", "")


def test_a_callable_is_handed_every_event():
    seen: list[Event] = []
    for event in told(3):
        resolve_progress(seen.append)(event)
    assert seen == told(3)


def test_the_log_hears_beginnings_endings_and_notes(caplog):
    with caplog.at_level(logging.INFO, "dkl"):
        for event in [*told(3), Event("note", "fit", detail={"message": "sorted labels"})]:
            log_event(event)
    assert [record.levelname for record in caplog.records] == ["INFO"] * 3
    assert "potentials finished: 3/3" in caplog.messages[1]
    assert caplog.messages[2] == "fit: sorted labels"


def test_the_log_has_no_handlers_of_its_own():
    assert LOG.handlers == []


def test_a_wrong_choice_of_progress_is_named():
    with pytest.raises(TypeError, match=r"progress is 'yes'; expected True, False, None or a function"):
        resolve_progress("yes")


def test_a_listener_hears_every_event_whatever_is_shown():
    seen, others = [], []
    for progress in (None, False, others.append):
        with listening(seen.append):
            publish = resolve_progress(progress)
        publish(Event("started", "potentials"))
    resolve_progress(False)(Event("started", "potentials"))
    assert [len(seen), len(others)] == [3, 1]


def count_rows(block, operands):
    return {"rows": np.array(block.n_rows)}


def test_what_passes_read_is_added_up_to_the_bytes_of_their_blocks(tmp_path):
    source = dkl.create_dataset(tmp_path / "rows.zarr", np.ones((90, 3)), rows_a_block=30).source
    tally = Tally()
    with dask.config.set({"scheduler": "synchronous", "dkl.cache-bytes": 0}):
        passes = [
            run_pass(source, (BlockSum("rows", count_rows, {"rows": Accumulator(())}),), publish=tally).stats
            for _ in range(2)
        ]
    assert (tally.passes, tally.cache_hits) == (2, 0)
    assert tally.bytes == sum(one.bytes for one in passes) > 2 * 90 * 3 * 8
