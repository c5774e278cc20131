"""Input files: paths, globs, folders and URLs resolved to files that open as decompressed byte streams."""

from __future__ import annotations

import gzip
import lzma
import os
import posixpath
import re
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import IO, Any, Literal
from urllib.parse import unquote

from fsspec.compression import compr
from fsspec.core import url_to_fs
from fsspec.implementations.local import LocalFileSystem
from fsspec.utils import infer_compression

FileFormat = Literal["csv", "parquet", "libsvm", "npz"]
PathLike = str | os.PathLike[str]

# What a compressed text is taken to unfold to when space and progress are estimated.
_COMPRESSION_RATIO = 8
# The name of the folder that Hive gives rows without a value.
_HIVE_MISSING = "__HIVE_DEFAULT_PARTITION__"

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
    partition : tuple of (str, int or str or None)
        What the names of its folders say of all its rows, as Hive writes it: ("k", 1) for a file in ``k=1/``. None is a
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
        """The suffix that tells the format: that of ``part.csv.gz`` is ``.csv``."""
        return _format_suffix(self.name, self.compression)

    @property
    def identity(self) -> Any:
        """Equal for two names of one file, also where one is a link or a relative path."""
        if not isinstance(self._fs, LocalFileSystem):
            return self._fs, self._path
        # Windows may give no inode; then the name is resolved.
        status = os.stat(self._path)
        return (status.st_dev, status.st_ino) if status.st_ino else os.path.realpath(self._path)

    @property
    def state(self) -> str:
        """Another one when the file has been written since."""
        if not isinstance(self._fs, LocalFileSystem):
            return str(self._fs.ukey(self._path))
        status = os.stat(self._path)
        return f"{status.st_size} {status.st_mtime_ns}"

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
            # fsspec's table of compressions, whose entries open a stream of bytes around another one.
            with compr[self.compression](raw, mode="rb") as stream:
                yield stream

    @contextmanager
    def _damage_named(self) -> Iterator[None]:
        """Errors of the decompressing libraries as one that names the file; other errors pass."""
        try:
            yield
        except (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError) as error:
            # An error of the file system has a number or a kind, one of a decompressing library has neither.
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
        # fsspec reads the first file of an archive, and says nothing of the others.
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

    Folders named ``key=value`` give their files a `partition`: below a folder that was named, from the first wildcard
    of a glob on, and below the folder that several files share. Values are whole numbers where those of all files are.

    Raises
    ------
    FileNotFoundError
        A path, or a glob, matches nothing.
    ValueError
        A file is empty, or there is no path.
    """
    given = [paths] if isinstance(paths, str | os.PathLike) else list(paths)
    expanded = [_expand(os.fspath(path), dict(storage_options or {})) for path in given]
    # Files that were named one by one: folders above all of them say nothing that tells them apart.
    single = [posixpath.dirname(file._path) for files, base in expanded if base is None for file in files]
    shared = posixpath.commonpath(single) if single else ""
    files = [
        replace(file, partition=_folder_values(file._path, shared if base is None else base))
        for files, base in expanded
        for file in files
    ]
    if not files:
        raise ValueError("no input files: paths is empty")
    # Programs that write in parts leave empty ones; a file that was named by itself is meant to hold rows.
    found = {file.name for of_path, base in expanded if base is not None for file in of_path if not file.size}
    files = [file for file in files if file.name not in found] or files
    for file in files:
        if not file.size:
            raise ValueError(f"'{file.name}' is empty (0 bytes); leave it out or write it again")
    first: dict[Any, InputFile] = {}
    again = [file for file in files if first.setdefault(file.identity, file) is not file]
    if again:
        named = ", ".join(f"'{file.name}' (as '{first[file.identity].name}')" for file in again[:5])
        warnings.warn(
            f"{len(again)} of the input files are there already under the same or another name, and are read once: "
            f"{named}{', ...' if len(again) > 5 else ''}",
            UserWarning,
            stacklevel=3,
        )
    return _with_whole_numbers(list(first.values()))


def _folder_values(path: str, base: str) -> tuple[tuple[str, str | None], ...]:
    """(key, value) of each folder ``key=value`` between `base` and a file, outermost first."""
    folders = posixpath.dirname(path)[len(base) :].split("/")
    pairs = [folder.partition("=") for folder in folders]
    values = [(unquote(key), unquote(value)) for key, equals, value in pairs if equals and key]
    return tuple((key, None if value == _HIVE_MISSING else value) for key, value in values)


def _with_whole_numbers(files: list[InputFile]) -> list[InputFile]:
    """The same files; values of a key that are whole numbers in all of them become such."""
    # Of at most 18 digits, so that each is a number of 64 bits.
    whole = re.compile(r"[+-]?[0-9]{1,18}")
    pairs = [pair for file in files for pair in file.partition]
    texts = {key for key, value in pairs if value is not None and not whole.fullmatch(str(value))}

    def typed(key: str, value: int | str | None) -> int | str | None:
        return value if value is None or key in texts else int(value)

    return [replace(file, partition=tuple((key, typed(key, value)) for key, value in file.partition)) for file in files]


def _expand(path: str, storage_options: dict[str, Any]) -> tuple[list[InputFile], str | None]:
    """The files at a path, and the folder below which the names of folders say something of them (None: not known)."""
    fs, bare = url_to_fs(path, **storage_options)
    base = None
    if fs.isfile(bare):
        names = [bare]
    elif fs.isdir(bare):
        base = bare.rstrip("/")
        # Of a folder those files are taken whose suffix tells a format: others lie there for other purposes.
        names = sorted(name for name in fs.find(bare) if _SUFFIXES.get(_format_suffix(name, infer_compression(name))))
    else:
        names = sorted(name for name in fs.glob(bare) if fs.isfile(name)) if any(c in bare for c in "*?[") else []
        # The folders before the first wildcard are the same for all files that it finds.
        base = posixpath.dirname(re.split(r"[*?\[]", bare)[0])
    if not names:
        raise FileNotFoundError(
            f"no input file at '{path}' (paths may be files, folders, globs like 'part-*.csv', URLs)"
        )
    prefix = path.split("://")[0] + "://" if "://" in path else ""
    # A file that was named by itself keeps the name that the user gave it.
    is_itself = names == [bare]
    files = [
        InputFile(path if is_itself else prefix + name, int(fs.size(name) or 0), infer_compression(name), fs, name)
        for name in names
    ]
    return files, base


def _format_suffix(name: str, compression: str | None) -> str:
    """The suffix that tells the format: that of ``part.csv.gz`` is ``.csv``."""
    path = PurePosixPath(name)
    return (PurePosixPath(path.stem) if compression else path).suffix.lower()


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
    for name, told in formats.items():
        if told is None:
            raise ValueError(
                f"'{name}' has no suffix that tells its format {sorted(_SUFFIXES)}; rename it, or say format='csv' "
                "or such"
            )
    if len(set(formats.values())) > 1:
        raise ValueError(f"the files are of several formats: {formats}; ingest one format at a time")
    return next(name for name in formats.values() if name is not None)
