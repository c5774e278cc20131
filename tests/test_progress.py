"""Progress: drawn only where somebody looks on, heard by the log, harmless when work fails."""

from __future__ import annotations

import io
import itertools
import logging
import re

import dask
import numpy as np
import pytest
from rich.console import Console

import dkl
from dkl.events import Event
from dkl.passes.loop import run_pass
from dkl.progress import LOG, ProgressLine, Tally, _Log, _Terminal, listening, log_event, resolve_progress
from dkl.protocols.records import Accumulator, BlockSum


def told(n: int, name: str = "potentials", **last: object) -> list[Event]:
    """A pass over n blocks of 100 MB."""
    steps = [Event("advanced", name, done, n, bytes=10**8, detail={"cache_hits": 0}) for done in range(1, n + 1)]
    return [
        Event("started", name, 0, n),
        *steps,
        Event("finished", name, n, n, detail={"bytes": n * 10**8, "cache_hits": 0, **last}),
    ]


class Page:
    """Where a line is shown, as a list of all texts."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.notes: list[str] = []
        self.ended: list[str] = []

    def show(self, text: str) -> None:
        self.texts.append(text)

    def say(self, note: str) -> None:
        self.notes.append(note)

    def end(self, text: str) -> None:
        self.ended.append(text)


def shown(events: list[Event], **options: object) -> Page:
    """What is shown where each event comes after a second."""
    page, seconds = Page(), itertools.count()
    line = ProgressLine(page, clock=lambda: float(next(seconds)) / 2.0, **options)
    for event in events:
        line(event)
    return page


def drawn(events: list[Event], width: int = 90) -> str:
    out = io.StringIO()
    terminal = _Terminal(Console(file=out, force_terminal=True, width=width))
    line = ProgressLine(terminal, is_shared=True)
    for event in events:
        line(event)
    if terminal._live is not None:
        # it is redrawn four times a second
        terminal._live.refresh()
    line.end("all is done")
    return out.getvalue()


def trial(done: int, kind: str, score: float, best: str, best_score: float) -> Event:
    detail = {"kind": kind, "score": score, "best": best, "best_score": best_score, "seconds_left": 20.0}
    return Event("advanced", "choice", done, 13, seconds=5.0, detail=detail)


def test_a_choice_shows_its_last_trial_the_best_so_far_and_the_time_left() -> None:
    first = trial(4, "landmarks (up to 1,000)", 0.8713, "searched waves", 0.874)
    page = shown([Event("started", "choice"), *told(2), first, trial(5, "steps", 0.9, "steps", 0.9)])
    said = "trial 4 of at most 13: landmarks .871 (best so far: searched waves .874) - 5 s, at most 20 s left"
    assert said in page.texts
    assert page.texts[-1] == "trial 5 of at most 13: steps .900 - 5 s, at most 20 s left"


def test_what_is_longer_than_a_terminal_keeps_its_time_on_one_line() -> None:
    events = [trial(4, "a Laplacian kernel at landmarks", 0.8713, "searched waves", 0.874)]
    assert "trial 4: a Laplacian kernel at landmarks .871 - 5 s, at most 20 s left" in drawn(events, width=80)
    assert "landmarks .871 (best so far: .874) - 5 s, at most 20 s left" in drawn(events, width=110)


def test_what_is_longer_than_a_terminal_loses_whole_figures() -> None:
    note = Event("note", "memory", detail={"message": "64 MiB", "expected_passes": 14})
    figures = {"n_features": 50.0, "loss": 0.51234, "duality_gap": 0.126}
    page = drawn([note, *told(4)[:-1], Event("advanced", "rounds", 1, 2, detail=figures)], width=60)
    assert re.search(
        r"pass 1 of about 14(, [.\d]+ [GM]B/s)?(, about \d+ s left)?, loss 0.512(, duality gap 0.126)?\s", page
    )
    assert "…" not in page


def test_a_terminal_says_how_old_its_line_is() -> None:
    out = io.StringIO()
    terminal = _Terminal(Console(file=out, force_terminal=True, width=90))
    terminal.show("trial 4: steps .871 - 5 s, at most 20 s left")
    terminal._shown -= 30.0
    terminal._live.refresh()
    terminal.end("")
    assert "at most 20 s left (30 s ago)" in out.getvalue()


def test_passes_show_the_bytes_a_second_and_the_time_left_where_a_plan_expects_their_number() -> None:
    note = Event("note", "memory", detail={"message": "64 MiB", "expected_passes": 14})
    texts = shown([note, *told(4), *told(4), *told(4)], is_shared=True).texts
    said = re.compile(r"pass \d+ of about 14, \.?\d+(\.\d)? (GB|MB)/s(, about \d+ (s|min) left)?")
    assert all(said.fullmatch(text) for text in texts[1:])
    assert texts[-1].startswith("pass 3 of about 14")
    assert texts[-1].endswith(" left")
    without = shown([*told(4), *told(4)], is_shared=True).texts
    assert not any("about" in text for text in without)
    assert without[-1].startswith("pass 2, ")


def test_no_more_passes_are_promised_than_are_expected() -> None:
    note = Event("note", "memory", detail={"message": "64 MiB", "expected_passes": 1})
    assert shown([note, *told(2), *told(2)], is_shared=True).texts[-1].startswith("pass 2, ")


def test_other_work_shows_its_share_and_its_end() -> None:
    reading = [Event("advanced", "reading", done, 4_000_000) for done in (1_000_000, 2_000_000)]
    page = shown([Event("started", "reading", 0, 4_000_000), *reading, Event("finished", "reading", 1, 4_000_000)])
    assert any(re.fullmatch(r"reading 50%, about \d+ s left", text) for text in page.texts)
    assert re.fullmatch(r"reading: \d+ s", page.ended[0])


def test_rounds_show_where_they_stand_once_they_know_it():
    rounds = [
        Event("advanced", "rounds", 3, detail={"duality_gap": 0.25, "loss": 0.123456}),
        Event("finished", "rounds", 3),
    ]
    assert "duality gap 0.25, loss 0.123" in shown([Event("started", "rounds"), *told(2), *rounds]).texts[-1]


def test_a_terminal_has_one_line_for_a_fit_of_many_passes() -> None:
    events = [event for epoch in range(30) for event in told(2, f"epoch {epoch}")]
    assert drawn(events).count("\n") == 1


def test_a_note_is_said_beside_the_line():
    note = Event("note", "ingest", detail={"message": "12 columns [one-hot]"})
    assert "12 columns [one-hot]" in drawn([note])
    assert "12 columns [one-hot]" in drawn([*told(3)[:2], note, told(3)[-1]])


@pytest.mark.usefixtures("little_work")
def test_all_work_of_a_fit_is_on_one_line_that_ends_with_its_conclusion(monkeypatch) -> None:
    pages: list[Page] = []
    monkeypatch.setattr("dkl.progress._Log", lambda: pages.append(Page()) or pages[-1])
    X = np.random.default_rng(0).normal(size=(80, 3))
    model = dkl.KernelClassifier(effort="fast", random_state=0).fit(X, X[:, 0] * X[:, 1] > 0.0)
    assert len(pages) == 1
    (ended,) = pages[0].ended
    assert ended.startswith(model.summary_.removesuffix(")."))
    assert re.search(r"; \d+ s\)\.$", ended)


def test_without_a_terminal_a_line_is_logged_every_30_seconds(caplog) -> None:
    now = [0.0]
    line = ProgressLine(_Log(clock=lambda: now[0]), clock=lambda: now[0])
    with caplog.at_level(logging.INFO, "dkl.progress"):
        for event in told(20):
            now[0] += 4.0
            line(event)
    assert len(caplog.messages) == 2
    assert all(message.startswith("pass 1") for message in caplog.messages)


@pytest.mark.slow
def test_a_notebook_has_one_display_a_fit_and_needs_no_widgets(tmp_path) -> None:
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    begin = "import sys, numpy as np, dkl\nsys.modules['ipywidgets'] = None\n"
    begin += "X = np.random.default_rng(0).normal(size=(80, 3))\ny = X[:, 0] * X[:, 1] > 0\n"
    fits = [
        "model = dkl.KernelClassifier(effort='fast', trials=[0, 1], random_state=0).fit(X, y)",
        "model = dkl.KernelClassifier('random', n_features=10, random_state=0).fit(X, y)",
    ]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(code) for code in (begin, *fits)])
    nbclient.NotebookClient(notebook, timeout=120, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = []
    for cell in notebook.cells[1:]:
        # where dkl was never used, its kernels are compiled first, which is said
        outputs = [output for output in cell.outputs if "dkl compiles kernels" not in output.get("text", "")]
        assert [output["output_type"] for output in outputs] == ["display_data"]
        assert set(outputs[0]["data"]) == {"text/plain", "text/html"}
        shown.append(outputs[0]["data"]["text/plain"])
    assert "accuracy" in shown[0]


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
