"""Nothing that is there is lost: results replace their own kind only, never an input, and are whole or absent."""

from __future__ import annotations

import errno
import hashlib
import os
import resource
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

import dkl
from dkl.cli.app import app
from dkl.cli.predictions import is_predictions, open_writer
from dkl.data.store import commit
from dkl.data.store.location import Location
from dkl.data.store.outputs import FileKind, beside, written_whole
from dkl.errors import DklHint
from dkl.model_io import load_model

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(RNG.normal(size=(60, 3)), columns=list("abc"))
LABELS = np.where(FRAME.a > 0, "yes", "no")
OPTIONS = ("--learner", "random", "--features", "10", "--epochs", "1")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows, as files and as a store, a model on them, and things that are not dkl's."""
    folder = tmp_path_factory.mktemp("outputs")
    FRAME.to_csv(folder / "rows.csv", index=False)
    FRAME.to_parquet(folder / "rows.parquet")
    FRAME.assign(label=LABELS).to_csv(folder / "labels.csv", index=False)
    dkl.ingest(str(folder / "labels.csv"), str(folder / "rows.zarr"), target="label", progress=False)
    model = dkl.KernelClassifier(dkl.RandomFeatures(n_features=10), epochs=1, random_state=0)
    model.fit(dkl.open_dataset(str(folder / "rows.zarr"))).save(folder / "model.zarr")
    (folder / "notes").mkdir()
    (folder / "notes" / "thoughts.txt").write_text("mine")
    (folder / "empty").mkdir()
    (folder / "mine.html").write_text("<p>mine</p>")
    (folder / "mine.json").write_text('{"mine": 1}')
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy to be spoiled; the working folder, too."""
    shutil.copytree(whole, tmp_path / "work")
    monkeypatch.chdir(tmp_path / "work")
    return tmp_path / "work"


def contents(folder: Path) -> dict[str, str]:
    """Every file with its digest."""
    files = [path for path in folder.rglob("*") if path.is_file() and not path.is_symlink()]
    return {str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def run(*arguments: object) -> Any:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def nothing_is_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A pass is an error.

    What passes call is replaced, not `run_pass`, which modules that a command imports here would keep for later tests.
    """
    monkeypatch.setattr("dkl.passes.loop.open_session", None)


# each is refused, with what the message says; LINK is a link to rows.zarr, HARD another name of rows.csv
REFUSED: dict[str, tuple[list[str], str]] = {
    "predictions over a dataset": (["predict", "model.zarr", "rows.csv", "rows.zarr"], "is a dataset"),
    "predictions over the rows they read": (["predict", "model.zarr", "rows.zarr", "rows.zarr"], "is the input"),
    "predictions over the model they use": (["predict", "model.zarr", "rows.csv", "model.zarr"], "is the input"),
    "predictions over another model": (["predict", "model.zarr", "rows.csv", "other.zarr"], "is a model"),
    "predictions over their input file": (["predict", "model.zarr", "rows.csv", "rows.csv"], "is the input"),
    "predictions over their Parquet input": (["predict", "model.zarr", "rows.parquet", "rows.parquet"], "is the input"),
    "the input by a relative name": (["predict", "model.zarr", "rows.csv", "notes/../rows.csv"], "is the input"),
    "the input through a link": (["predict", "model.zarr", "rows.zarr", "LINK.zarr"], "is the input"),
    "the input by another name of the file": (["predict", "model.zarr", "rows.csv", "HARD.csv"], "is the input"),
    "the input by a glob": (["predict", "model.zarr", "r*s.csv", "rows.csv"], "is the input"),
    "predictions inside the rows": (["predict", "model.zarr", "rows.zarr", "rows.zarr/out.csv"], "lies inside"),
    "predictions inside the model": (["predict", "model.zarr", "rows.csv", "model.zarr/out.zarr"], "lies inside"),
    "predictions inside a folder of input": (["predict", "model.zarr", "files", "files/out.csv"], "lies inside"),
    "predictions over rows of the user": (["predict", "model.zarr", "rows.csv", "labels.csv"], "not predictions"),
    "predictions over Parquet of the user": (["predict", "model.zarr", "rows.csv", "rows.parquet"], "not predictions"),
    "predictions over a folder of the user": (["predict", "model.zarr", "rows.csv", "notes.zarr"], "is a folder"),
    "a model over a dataset": (["fit", "rows.zarr", "other-rows.zarr", *OPTIONS], "is a dataset"),
    "a model over its rows": (["fit", "rows.zarr", "rows.zarr", *OPTIONS], "is the input"),
    "a model inside its rows": (["fit", "rows.zarr", "rows.zarr/model", *OPTIONS], "lies inside"),
    "a model over a file": (["fit", "rows.zarr", "rows.csv", *OPTIONS], "is a file"),
    "a model over a folder of the user": (["fit", "rows.zarr", "notes", *OPTIONS], "is a folder"),
    "a model in the place of its checkpoint": (
        ["fit", "rows.zarr", "new.zarr", "--checkpoint", "new.zarr", *OPTIONS],
        "is the input",
    ),
    "a checkpoint that is a dataset": (
        ["fit", "rows.zarr", "new.zarr", "--checkpoint", "other-rows.zarr", *OPTIONS],
        "is a dataset",
    ),
    "a dataset over a model": (["ingest", "labels.csv", "model.zarr", "--target", "label"], "is a model"),
    "a dataset over its input": (["ingest", "labels.csv", "labels.csv", "--target", "label"], "file"),
    "a dataset that holds its input": (["ingest", "other-rows.zarr/in.csv", "other-rows.zarr"], "dkl did not write"),
    "a page over a page of the user": (["report", "model.zarr", "--output", "mine.html"], "is a file"),
    "a page over JSON of the user": (["report", "model.zarr", "--output", "mine.json"], "is a file"),
    "a page inside the model": (["report", "model.zarr", "--output", "model.zarr/page.html"], "lies inside"),
    "a tuned model over a dataset": (
        ["tune", "rows.zarr", "other-rows.zarr", "--space", "alpha=1e-5:1e-2:log"],
        "is a dataset",
    ),
    "trials over rows of the user": (
        ["tune", "rows.zarr", "new.zarr", "--space", "alpha=1e-5:1e-2:log", "--table", "labels.csv"],
        "not a table of trials",
    ),
}


def test_what_is_there_is_not_replaced_by_another_kind_and_nothing_is_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree("rows.zarr", "other-rows.zarr")
    shutil.copy("rows.csv", "other-rows.zarr/in.csv")
    shutil.copytree("model.zarr", "other.zarr")
    shutil.copytree("notes", "notes.zarr")
    os.symlink("rows.zarr", "LINK.zarr")
    os.link("rows.csv", "HARD.csv")
    os.mkdir("files")
    shutil.copy("rows.csv", "files/rows.csv")
    nothing_is_computed(monkeypatch)
    before = contents(folder)
    for name, (arguments, says) in REFUSED.items():
        ended = run(*arguments, "--overwrite")
        assert ended.exit_code == 1, f"{name}: {ended.output}"
        assert says in " ".join(ended.stderr.split()), name
        assert contents(folder) == before, name


@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".zarr"])
def test_predictions_replace_predictions_when_that_is_asked_for(folder: Path, suffix: str) -> None:
    output = f"out{suffix}"
    model = dkl.KernelClassifier(dkl.RandomFeatures(n_features=10), epochs=1, calibrate=True, random_state=0)
    model.fit(FRAME.to_numpy(), LABELS).save(folder / "proba.zarr")
    for options in ([], ["--overwrite"], ["--proba", "--overwrite"]):
        ended = run("predict", "proba.zarr", "rows.csv", output, *options)
        assert ended.exit_code == 0, ended.output
        assert is_predictions(folder / output)
        again = run("predict", "proba.zarr", "rows.csv", output)
        assert again.exit_code == 1
        assert "--overwrite" in again.stderr
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


def test_predictions_with_files_of_the_user_among_them_stay(folder: Path) -> None:
    ended = run("predict", "model.zarr", "rows.csv", "out.zarr")
    assert ended.exit_code == 0, ended.output
    Path("out.zarr/notes.txt").write_text("mine")
    ended = run("predict", "model.zarr", "rows.csv", "out.zarr", "--overwrite")
    assert ended.exit_code == 1
    assert "'notes.txt'" in ended.stderr
    assert Path("out.zarr/notes.txt").read_text() == "mine"


@pytest.mark.parametrize(
    ("text", "own"),
    [
        ('"row_id","prediction"\n0,"yes"\n', True),
        ('"row_id","prediction","probability_a,b","probability_""q"""\n', True),
        ("row_id,prediction\n0,yes\n", False),
        ('"row_id","prediction","comment"\n', False),
        ('"id","row_id","prediction"\n', False),
        ("", False),
        ('"row_id","prediction"', False),
    ],
)
def test_a_csv_file_is_predictions_by_exactly_the_header_of_predictions(tmp_path: Path, text: str, own: bool) -> None:
    (tmp_path / "x.csv").write_text(text)
    assert is_predictions(tmp_path / "x.csv") == own


def test_a_report_and_a_table_of_trials_replace_their_own_kind(folder: Path) -> None:
    for suffix in ("html", "json", "txt"):
        for options in ([], ["--overwrite"]):
            ended = run("report", "model.zarr", "--output", f"page.{suffix}", *options)
            assert ended.exit_code == 0, ended.output
        assert run("report", "model.zarr", "--output", f"page.{suffix}").exit_code == 1


def test_a_model_that_a_user_has_put_files_into_is_not_replaced(folder: Path) -> None:
    (folder / "model.zarr" / "notes.txt").write_text("mine")
    with pytest.raises(FileExistsError, match=r"'notes\.txt'"):
        load_model("model.zarr").save("model.zarr", overwrite=True)
    assert (folder / "model.zarr" / "notes.txt").read_text() == "mine"


@pytest.mark.parametrize("place", ["rows.csv", "notes", "mine.html"])
def test_a_model_replaces_models_only(folder: Path, place: str) -> None:
    before = contents(folder)
    with pytest.raises(FileExistsError, match="not a model"):
        load_model("model.zarr").save(place, overwrite=True)
    assert contents(folder) == before


@pytest.mark.parametrize("command", ["compare", "demo"])
def test_a_folder_of_results_keeps_what_the_command_did_not_make(folder: Path, command: str) -> None:
    os.mkdir("out")
    shutil.copytree("rows.zarr", "out/rows.zarr")
    before = contents(folder)
    data = ["labels.csv"] if command == "compare" else ["--data", "labels.csv"]
    ended = run(command, *data, "--target", "label", "--output", "out")
    assert ended.exit_code == 1
    assert "not made by this command" in " ".join(ended.stderr.split())
    assert contents(folder) == before


def test_a_read_only_folder_is_told_before_the_work(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    closed = folder / "closed"
    closed.mkdir()
    usual = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != closed and usual(path, mode))
    nothing_is_computed(monkeypatch)
    for arguments in (
        ["fit", "rows.zarr", "closed/model.zarr", *OPTIONS],
        ["predict", "model.zarr", "rows.csv", "closed/out.csv"],
        ["report", "model.zarr", "--output", "closed/page.html"],
        ["ingest", "labels.csv", "closed/rows.zarr", "--target", "label"],
        ["tune", "rows.zarr", "closed/model.zarr", "--space", "alpha=1e-5:1e-2:log"],
    ):
        ended = run(*arguments)
        assert ended.exit_code == 1, ended.output
        assert "not permitted" in " ".join(ended.stderr.split())
    assert not any(closed.iterdir())


@contextmanager
def full_disk(n_bytes: int) -> Iterator[None]:
    """No file gets longer than that, as on a disk that has no more room."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def _predictions(folder: Path) -> None:
    with open_writer(str(folder / "out.csv"), overwrite=True) as writer:
        for start in range(0, 200_000, 50_000):
            rows = np.arange(start, start + 50_000)
            writer.write({"row_id": rows, "prediction": rows.astype(float)})


def _onnx(folder: Path) -> None:
    pytest.importorskip("onnx")
    load_model(folder / "model.zarr").to_onnx(folder / "model.onnx")


def _report(folder: Path) -> None:
    dkl.report(load_model(folder / "model.zarr")).write(folder / "page.html")


WRITERS: dict[str, tuple[str, Callable[[Path], None]]] = {
    "predictions": ("out.csv", _predictions),
    "onnx": ("model.onnx", _onnx),
    "report": ("page.html", _report),
}


@pytest.mark.parametrize("name", WRITERS)
def test_a_full_disk_is_one_error_with_the_path_and_the_old_file_is_whole(name: str, folder: Path) -> None:
    output, write = WRITERS[name]
    write(folder)
    before = contents(folder)
    with full_disk(700), pytest.raises(OSError, match=rf"{output}' was not written.*is as it was"):
        write(folder)
    assert contents(folder) == before


def test_a_file_appears_whole_through_a_link_with_the_mode_it_had(tmp_path: Path) -> None:
    (tmp_path / "real").write_text("old")
    (tmp_path / "real").chmod(0o640)
    os.symlink("real", tmp_path / "link")
    with written_whole(tmp_path / "link") as hidden:
        hidden.write_text("new")
        assert (tmp_path / "real").read_text() == "old"
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"
    assert (tmp_path / "real").stat().st_mode & 0o777 == 0o640
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


@pytest.mark.parametrize("write", [lambda m, p: m.to_onnx(p), lambda m, p: dkl.report(m).write(p)])
def test_a_place_for_a_file_is_refused_in_words(folder: Path, write: Callable[[Any, Any], None]) -> None:
    pytest.importorskip("onnx")
    model = load_model("model.zarr")
    (folder / "folder.html").mkdir()
    for place, says in (
        ("folder.html", "is a folder"),
        ("new.html/", "is a folder"),
        ("new.html/.", "is a folder"),
        ("no/such/x.html", "is not there"),
        ("rows.csv/x.html", "is a file"),
        ("s3://bucket/x.html", "is a URL"),
        ("nul\0.html", "NUL"),
    ):
        with pytest.raises((OSError, ValueError), match=says):
            write(model, place)
    assert not (folder / "new.html").exists()


def _picture(folder: Path, place: Path) -> None:
    dkl.plots.AnswersDisplay.from_estimator(load_model(folder / "model.zarr"), FRAME, LABELS).save(place)


# each writes one file to a path without asking, of the kind that it may replace
ALONE: dict[str, tuple[str, Callable[[Path, Path], object]]] = {
    "report": (".html", lambda folder, place: dkl.report(load_model(folder / "model.zarr")).write(place)),
    "json": (".json", lambda folder, place: dkl.report(load_model(folder / "model.zarr")).write(place)),
    "text": (".txt", lambda folder, place: dkl.report(load_model(folder / "model.zarr")).write(place)),
    "graph": (".onnx", lambda folder, place: load_model(folder / "model.zarr").to_onnx(place)),
    "picture": (".png", _picture),
    "drawing": (".svg", _picture),
    "document": (".pdf", _picture),
}


@pytest.mark.parametrize(
    ("name", "through"), [*((name, "itself") for name in ALONE if name != "graph"), ("graph", "a link")]
)
def test_a_file_of_another_kind_is_never_replaced_and_one_of_its_own_is(name: str, through: str, folder: Path) -> None:
    pytest.importorskip("onnx")
    pytest.importorskip("matplotlib")
    suffix, write = ALONE[name]
    place = mine = folder / f"mine{suffix}"
    mine.write_text("my own file\n")
    if through == "a link":
        place = folder / f"link{suffix}"
        place.symlink_to(mine)
    before = contents(folder)
    with pytest.raises(FileExistsError, match=rf"{place.name}'.* exists: it is a file, not an? .* never replaced"):
        write(folder, place)
    assert contents(folder) == before
    mine.unlink()
    write(folder, place)  # nothing there, or a link to nothing
    first = mine.read_bytes()
    write(folder, place)
    assert mine.stat().st_size > 0
    assert len(mine.read_bytes()) == pytest.approx(len(first), rel=0.1)
    assert place.is_symlink() == (through == "a link")


def test_a_file_that_comes_to_lie_there_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    place = tmp_path / "note.txt"

    def write_while_another_does() -> None:
        with written_whole(place, FileKind("note", lambda path: False)) as hidden:
            hidden.write_text("new")
            place.write_text("mine")

    with pytest.raises(FileExistsError, match="not a note"):
        write_while_another_does()
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("note.txt", "mine")]


def _written(place: Path, text: str) -> None:
    """A file, or a folder with one in it, that appears at a place."""
    with beside(Location.of(place)) as hidden:
        if place.suffix == ".zarr":
            hidden.mkdir()
        (hidden / "note" if place.suffix == ".zarr" else hidden).write_text(text)


@pytest.mark.parametrize("can_exchange", [True, False])
@pytest.mark.parametrize("name", ["page.html", "rows.zarr"])
def test_a_rename_that_is_made_and_reported_as_failed_is_made(
    name: str, can_exchange: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a file system behind a network does whose answer is lost: the new file or folder is there, and no other."""
    place = tmp_path / name
    for move in (os.rename, os.replace):

        def lost_answer(*names: Any, move: Callable[..., None] = move, **folders: Any) -> None:
            move(*names, **folders)
            raise OSError(errno.EIO, os.strerror(errno.EIO))

        monkeypatch.setattr(os, move.__name__, lost_answer)
    exchange = commit.exchanged
    monkeypatch.setattr(commit, "exchanged", lambda *given: can_exchange and exchange(*given) and False)
    for text in ("first", "second", "third"):
        _written(place, text)
        assert (place / "note" if place.is_dir() else place).read_text() == text
        assert os.listdir(tmp_path) == [name]


@pytest.mark.parametrize("name", ["page.html", "rows.zarr"])
def test_a_rename_that_is_not_made_is_an_error_and_leaves_what_was_there(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _written(tmp_path / name, "first")
    before = contents(tmp_path)

    def refuse(*names: Any, **folders: Any) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "rename", refuse)
    monkeypatch.setattr(os, "replace", refuse)
    monkeypatch.setattr(commit, "exchanged", lambda *given: False)
    with pytest.raises(OSError, match=rf"{name}' was not written.*What was there before is as it was"):
        _written(tmp_path / name, "second")
    assert contents(tmp_path) == before
    assert os.listdir(tmp_path) == [name]


def test_a_file_whose_name_cannot_be_forced_to_the_disk_is_there_and_not_said_to_be_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flush = commit.flush

    def refuse(path: Any) -> None:
        if Path(path) == tmp_path:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        flush(path)

    monkeypatch.setattr(commit, "flush", refuse)
    with pytest.warns(DklHint, match="page.html' is written and can be opened, but the file system did not confirm"):
        _written(tmp_path / "page.html", "first")
    assert (tmp_path / "page.html").read_text() == "first"


def test_a_file_whose_hidden_name_the_file_system_no_longer_knows_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: Path, missing_ok: bool = False) -> None:
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    monkeypatch.setattr(Path, "unlink", refuse)
    _written(tmp_path / "page.html", "first")
    assert (tmp_path / "page.html").read_text() == "first"
