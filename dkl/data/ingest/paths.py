"""Input files: paths, globs, folders and URLs resolved to files that open as decompressed byte streams."""

from __future__ import annotations

import gzip
import lzma
import os
import posixpath
import re
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import IO, Any, Literal
from urllib.parse import unquote

import pyarrow as pa
from fsspec.compression import compr
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_compression

from dkl.errors import warn_user

FileFormat = Literal["csv", "parquet", "libsvm", "npz"]
PathLike = str | os.PathLike[str]

# Assumed ratio of the sizes of a text decompressed and compressed, for estimates of disk space and progress.
_COMPRESSION_RATIO = 8
# The value in the name of Hive's folder of rows with a missing value.
_HIVE_MISSING = "__HIVE_DEFAULT_PARTITION__"

# Compressions that Arrow reads, by suffix; fsspec knows them only beside a library for each.
_BY_ARROW = {".zst": "zstd", ".lz4": "lz4"}

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
        The path as the user gave it or as the glob found it, also for messages.
    size : int
        Stored (compressed) bytes.
    compression : str or None
        "gzip", "bz2", "zstd", ...: by the suffix.
    partition : tuple of (str, int or str or None)
        Columns with one value for all rows, from the names of Hive folders: ("k", 1) for a file in ``k=1/``. None is a
        missing value.
    """

    name: str
    size: int
    compression: str | None
    _fs: Any
    _path: str
    partition: tuple[tuple[str, int | str | None], ...] = ()

    @property
    def suffix(self) -> str:
        """The suffix without that of the compression: ``.csv`` for ``part.csv.gz``."""
        return _format_suffix(self.name, self.compression)

    @property
    def identity(self) -> Any:
        """A value that is equal for all names of a file, including links and relative paths."""
        if not isinstance(self._fs, LocalFileSystem):
            return self._fs, self._path
        # file systems of Windows may have no inodes
        status = os.stat(self._path)
        return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(self._path)

    @property
    def state(self) -> str:
        """A text that changes when the file is written."""
        if not isinstance(self._fs, LocalFileSystem):
            return str(self._fs.ukey(self._path))
        status = os.stat(self._path)
        return f"{status.st_size} {status.st_mtime_ns}"

    @property
    def unpacked_size(self) -> int:
        """Estimate of the decompressed bytes."""
        return self.size if self.compression is None else _COMPRESSION_RATIO * self.size

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """The bytes of the file, decompressed.

        Raises
        ------
        ValueError
            When reading bytes that are truncated or not in the compression of the suffix.
        """
        with self._fs.open(self._path, "rb") as raw, self._damage_named():
            if self.compression is None:
                yield raw
                return
            if self.compression == "zip":
                self._check_one_member(raw)

            if self.compression in _BY_ARROW.values():
                with pa.CompressedInputStream(raw, self.compression) as stream:
                    yield stream
                return
            with compr[self.compression](raw, mode="rb") as stream:
                yield stream

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Turn errors of the decompression libraries into a ValueError with the file's name; other errors pass."""
        try:
            yield
        except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError) as error:
            # errors of the file system have a number or a subclass of OSError, those of decompression have neither
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
        # fsspec reads the first file of an archive and ignores the others
        members = [name for name in zipfile.ZipFile(raw).namelist() if not name.endswith("/")]
        if len(members) != 1:
            raise ValueError(f"'{self.name}' holds {len(members)} files, of which one would be read: unpack it first")
        raw.seek(0)


@contextmanager
def unreadable(file: InputFile, kind: str, remedy: str, *errors: type[Exception]) -> Iterator[None]:
    """Turn a library's errors for damaged or truncated files into a ValueError with the file's name and a remedy."""
    try:
        yield
    except errors as error:
        # unlike damage, a failure of the disk or the network has an error number
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(
            f"'{file.name}' is not a whole {kind}: {error}; it is damaged, was cut short, or holds something else: "
            f"{remedy}"
        ) from error


def find_files(paths: PathLike | Iterable[PathLike], storage_options: Mapping[str, Any] | None) -> list[InputFile]:
    """The files at `paths`, with globs and folders expanded and sorted; each file once, under its first name.

    Folders named ``key=value`` give their files a `partition`: those below a given folder, from the first wildcard of a
    glob on, and below the common folder of several given files. Values are integers if those of all files are.

    Raises
    ------
    FileNotFoundError
        If a path or a glob matches nothing.
    ValueError
        If a file is empty, or there is no path.

    Warns
    -----
    UserWarning
        If a file is given more than once: by overlapping globs, a link, or a relative and an absolute path.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    expanded = [_expand(os.fspath(path), dict(storage_options or {})) for path in given]
    # of files that were given one by one, only the folders below their common folder distinguish them
    single = [posixpath.dirname(file._path) for files, base in expanded if base is None for file in files]
    shared = posixpath.commonpath(single) if single else ""
    files = [
        replace(file, partition=_folder_values(file._path, shared if base is None else base))
        for files, base in expanded
        for file in files
    ]
    if not files:
        raise ValueError("no input files: paths is empty")
    # distributed programs leave empty files in folders; an empty file that was given itself is an error
    found = {file.name for of_path, base in expanded if base is not None for file in of_path if not file.size}
    files = [file for file in files if file.name not in found] or files
    for file in files:
        if not file.size:
            raise ValueError(f"'{file.name}' is empty (0 bytes); leave it out or write it again")
    first: dict[Any, InputFile] = {}
    again = [file for file in files if first.setdefault(file.identity, file) is not file]
    if again:
        named = ", ".join(f"'{file.name}' (as '{first[file.identity].name}')" for file in again[:5])
        warn_user(
            f"{len(again)} of the input files are there already under the same or another name, and are read once: "
            f"{named}{', ...' if len(again) > 5 else ''}"
        )
    return _with_whole_numbers(list(first.values()))


def _folder_values(path: str, base: str) -> tuple[tuple[str, str | None], ...]:
    """(key, value) for each folder ``key=value`` between `base` and a file, outermost first."""
    folders = posixpath.dirname(path)[len(base) :].split("/")
    pairs = [folder.partition("=") for folder in folders]
    values = [(unquote(key), unquote(value)) for key, equals, value in pairs if equals and key]
    return tuple((key, None if value == _HIVE_MISSING else value) for key, value in values)


def _with_whole_numbers(files: list[InputFile]) -> list[InputFile]:
    """The same files with integers as the values of keys that have only integers."""
    # at most 18 digits, so that they fit into 64 bits
    whole = re.compile(r"[+-]?[0-9]{1,18}")
    pairs = [pair for file in files for pair in file.partition]
    texts = {key for key, value in pairs if value is not None and not whole.fullmatch(str(value))}

    def typed(key: str, value: int | str | None) -> int | str | None:
        return value if value is None or key in texts else int(value)

    return [replace(file, partition=tuple((key, typed(key, value)) for key, value in file.partition)) for file in files]


def _expand(path: str, storage_options: dict[str, Any]) -> tuple[list[InputFile], str | None]:
    """The files at a path, and the folder below which folder names are partitions; None for a single file."""
    fs, bare = url_to_fs(path, **storage_options)
    base = None
    if fs.isfile(bare):
        names = [bare]
    elif fs.isdir(bare):
        base = bare.rstrip("/")
        # files with other suffixes are ignored
        names = sorted(name for name in fs.find(bare) if _SUFFIXES.get(_format_suffix(name, _compression(name))))
    else:
        names = sorted(name for name in fs.glob(bare) if fs.isfile(name)) if any(c in bare for c in "*?[") else []
        # the folders before the first wildcard are common to all files
        base = posixpath.dirname(re.split(r"[*?\[]", bare)[0])
    if not names:
        raise FileNotFoundError(
            f"no input file at '{path}' (paths may be files, folders, globs like 'part-*.csv', URLs)"
        )
    prefix = path.split("://")[0] + "://" if "://" in path else ""
    # a file that was given itself keeps the user's name for it
    is_itself = names == [bare]
    files = [
        InputFile(path if is_itself else prefix + name, int(fs.size(name) or 0), _compression(name), fs, name)
        for name in names
    ]
    return files, base


def _compression(name: str) -> str | None:
    """The compression that the suffix of a name says; None for none."""
    return _BY_ARROW.get(PurePosixPath(name).suffix.lower()) or infer_compression(name)


def _format_suffix(name: str, compression: str | None) -> str:
    """The suffix without that of the compression: ``.csv`` for ``part.csv.gz``."""
    path = PurePosixPath(name)
    return (PurePosixPath(path.stem) if compression else path).suffix.lower()


def file_format(files: list[InputFile], chosen: FileFormat | None) -> FileFormat:
    """The format of all files: `chosen`, or that of their suffixes.

    Raises
    ------
    ValueError
        If a suffix is unknown, or the files have different formats.
    """
    if chosen is not None:
        if chosen not in _SUFFIXES.values():
            raise ValueError(f"format is '{chosen}'; expected one of {sorted(set(_SUFFIXES.values()))}")
        return chosen
    formats = {file.name: _SUFFIXES.get(file.suffix) for file in files}
    for name, known_format in formats.items():
        if known_format is None:
            raise ValueError(
                f"'{name}' has no suffix that tells its format {sorted(_SUFFIXES)}; rename it, or say format='csv' or "
                "such, if it has one of these; write others as Parquet: pandas.read_json(...).to_parquet(...)"
            )
    if len(set(formats.values())) > 1:
        raise ValueError(f"the files are of several formats: {formats}; ingest one format at a time")
    return next(name for name in formats.values() if name is not None)
