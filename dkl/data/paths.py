"""Input files: paths, globs, folders and URLs resolved to files that open as decompressed byte streams."""

from __future__ import annotations

import gzip
import lzma
import os
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any, Literal

from fsspec.compression import compr
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_compression

FileFormat = Literal["csv", "parquet", "libsvm", "npz"]
PathLike = str | os.PathLike[str]

# what a compressed text is taken to unfold to when space and progress are estimated
_COMPRESSION_RATIO = 8

_SUFFIXES: dict[str, FileFormat] = {
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".libsvm": "libsvm",
    ".svmlight": "libsvm",
    ".svm": "libsvm",
    ".npz": "npz",
}


@dataclass(frozen=True)
class InputFile:
    """A file to read, on any fsspec file system.

    Parameters
    ----------
    name : str
        As the user named it or the glob found it: what messages call it.
    size : int
        Bytes as stored (compressed).
    compression : str or None
        "gzip", "bz2", "zstd", ...: by the suffix.
    """

    name: str
    size: int
    compression: str | None
    _fs: Any
    _path: str

    @property
    def suffix(self) -> str:
        """The suffix that tells the format: that of ``part.csv.gz`` is ``.csv``."""
        path = PurePosixPath(self.name)
        return (PurePosixPath(path.stem) if self.compression else path).suffix.lower()

    @property
    def identity(self) -> Any:
        """Equal for two names of one file, also where one is a link or a relative path."""
        if not isinstance(self._fs, LocalFileSystem):
            return self._fs, self._path
        found = os.stat(self._path)
        return (found.st_dev, found.st_ino) if found.st_ino else os.path.realpath(self._path)

    @property
    def unpacked_size(self) -> int:
        """About how many bytes the file holds decompressed."""
        return self.size if self.compression is None else _COMPRESSION_RATIO * self.size

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The bytes of the file, decompressed.

        Raises
        ------
        ValueError
            Where the bytes are read: they are not of the compression that the suffix tells, or end early.
        """
        with self._fs.open(self._path, "rb") as raw, self._damage_named():
            if self.compression is None:
                yield raw
                return
            if self.compression == "zip":
                self._check_one_member(raw)
            with compr[self.compression](raw, mode="rb") as stream:
                yield stream

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Errors of the decompressing libraries as one that names the file; other errors pass."""
        try:
            yield
        except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError) as error:
            # an error of the file system has a number or a kind, one of a decompressing library has neither
            if isinstance(error, OSError) and (
                self.compression is None or error.errno is not None or type(error) not in (OSError, gzip.BadGzipFile)
            ):
                raise
            kind = f"not whole {self.compression} data" if self.compression else "damaged"
            otherwise = f"; if it is not compressed, rename it without '{PurePosixPath(self.name).suffix}'"
            raise ValueError(
                f"'{self.name}' is {kind}: {error}. Write or copy the file again{otherwise if self.compression else ''}"
            ) from error

    def _check_one_member(self, raw: IO[bytes]) -> None:
        members = [name for name in zipfile.ZipFile(raw).namelist() if not name.endswith("/")]
        if len(members) != 1:
            raise ValueError(f"'{self.name}' holds {len(members)} files, of which one would be read: unpack it first")
        raw.seek(0)


def find_files(paths: PathLike | Iterable[PathLike], storage_options: Mapping[str, Any] | None) -> list[InputFile]:
    """The files that `paths` name, globs and folders expanded and sorted; each file once, under its first name.

    Warns
    -----
    UserWarning
        A file is named more than once: by overlapping globs, through a link, or by a relative and an absolute path.

    Raises
    ------
    FileNotFoundError
        A path, or a glob, matches nothing.
    ValueError
        A file is empty, or there is no path.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    files = [file for path in given for file in _expand(os.fspath(path), dict(storage_options or {}))]
    if not files:
        raise ValueError("no input files: paths is empty")
    for file in files:
        if not file.size:
            raise ValueError(f"'{file.name}' is empty (0 bytes); leave it out or write it again")
    return _each_once(files)


def _each_once(files: list[InputFile]) -> list[InputFile]:
    first: dict[Any, InputFile] = {}
    again = [file for file in files if first.setdefault(file.identity, file) is not file]
    if again:
        named = ", ".join(f"'{file.name}' (as '{first[file.identity].name}')" for file in again[:5])
        warnings.warn(
            f"{len(again)} of the input files are there already under the same or another name, and are read once: "
            f"{named}{', ...' if len(again) > 5 else ''}",
            UserWarning,
            stacklevel=4,
        )
    return list(first.values())


def _expand(path: str, storage_options: dict[str, Any]) -> list[InputFile]:
    fs, bare = url_to_fs(path, **storage_options)
    if fs.isfile(bare):
        found = [bare]
    elif fs.isdir(bare):
        found = sorted(name for name in fs.find(bare) if _SUFFIXES.get(_format_suffix(name)))
    else:
        found = sorted(name for name in fs.glob(bare) if fs.isfile(name)) if any(c in bare for c in "*?[") else []
    if not found:
        raise FileNotFoundError(
            f"no input file at '{path}' (paths may be files, folders, globs like 'part-*.csv', URLs)"
        )
    prefix = path.split("://")[0] + "://" if "://" in path else ""
    one = len(found) == 1 and found[0] == bare
    return [
        InputFile(path if one else prefix + name, int(fs.size(name) or 0), infer_compression(name), fs, name)
        for name in found
    ]


def _format_suffix(name: str) -> str:
    path = PurePosixPath(name)
    return (PurePosixPath(path.stem) if infer_compression(name) else path).suffix.lower()


def file_format(files: list[InputFile], chosen: FileFormat | None) -> FileFormat:
    """The one format of all files: `chosen`, or by their suffixes.

    Raises
    ------
    ValueError
        A suffix tells nothing, or the files are of several formats.
    """
    if chosen is not None:
        if chosen not in _SUFFIXES.values():
            raise ValueError(f"format is '{chosen}'; expected one of {sorted(set(_SUFFIXES.values()))}")
        return chosen
    formats = {file.name: _SUFFIXES.get(file.suffix) for file in files}
    for name, found in formats.items():
        if found is None:
            raise ValueError(
                f"'{name}' has no suffix that tells its format {sorted(_SUFFIXES)}; rename it, or say format='csv' "
                "or such"
            )
    if len(set(formats.values())) > 1:
        raise ValueError(f"the files are of several formats: {formats}; ingest one format at a time")
    return next(found for found in formats.values() if found is not None)
