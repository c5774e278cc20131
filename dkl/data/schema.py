"""Schema: the metadata of a dataset, known before its rows are read, and its JSON form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

Task = Literal["classification", "regression"]
HeldBy = Literal["group", "time"]


# Types of the plain fields in `Schema.to_json`.
_JSON_TYPES: dict[str, Any] = {
    "n_columns": int,
    "n_targets": int | None,
    "is_sparse": bool,
    "has_weight": bool,
    "provenance": dict,
    "column_names": list | None,
    "first_index": int | None,
}


@dataclass(frozen=True)
class RowColumn:
    """A column with an int64 value for each row, in addition to the features.

    Parameters
    ----------
    name : str
        The user's name for it.
    kind : {"group", "number", "datetime"}
        A group is stored as a hash of its value; a time as an integer with the same order: from the bits of a float64,
        or microseconds since 1970 in UTC.
    column : str
        Its name among the row columns of a block: "group" and "time" in a store.
    """

    name: str
    kind: Literal["group", "number", "datetime"]
    column: str


@dataclass(frozen=True, eq=False)
class Schema:
    """The frozen metadata of a dataset.

    Parameters
    ----------
    n_columns : int
        d, columns of X.
    dtype : dtype
        dtype of X, in the byte order of the machine.
    is_sparse : bool
        Whether rows are CSR instead of dense.
    task : {"classification", "regression"} or None
        None for rows without a target.
    classes : ndarray of shape (K,) or None
        The sorted labels; y of a block holds positions in it.
    n_targets : int or None
        Columns of y for several regression targets; None for a y of one dimension.
    column_names : list of str or None
    encoding : TableEncoding or None
        How the columns of X were computed from raw table columns.
    passthrough : ndarray of shape (d,), bool, or None
        Columns that scalers leave unchanged (one-hot columns, flags); None for none.
    has_weight : bool
        Whether a weight is stored for each row.
    provenance : mapping
        The origin of the rows: anything that JSON can represent.
    shuffle_seed : int or None
        The seed of the order of the rows, if they were shuffled.
    first_index : {0, 1} or None
        Number of the first column in the libsvm text that the rows were read from; None for rows from elsewhere.
    row_columns : mapping of str to RowColumn
        The columns "group" and "time" of the rows. A store keeps them outside this JSON, so that older releases, which
        do not know them, can read its rows.
    held_by : {"group", "time"} or None
        What determines the rows that are held out together; None holds out single rows.
    """

    n_columns: int
    dtype: np.dtype
    is_sparse: bool = False
    task: Task | None = None
    classes: np.ndarray | None = None
    n_targets: int | None = None
    column_names: list[str] | None = None
    encoding: Any = None
    passthrough: np.ndarray | None = None
    has_weight: bool = False
    provenance: Mapping[str, Any] = field(default_factory=dict)
    shuffle_seed: int | None = None
    first_index: int | None = None
    row_columns: Mapping[str, RowColumn] = field(default_factory=dict)
    held_by: HeldBy | None = None

    def __post_init__(self) -> None:
        # the class is frozen, but this is its constructor; native byte order, as kernels need it
        object.__setattr__(self, "dtype", np.dtype(self.dtype).newbyteorder("="))
        # all other code checks one of the two and relies on the other
        if (self.task == "classification") != (self.classes is not None):
            raise ValueError(f"a schema has classes when its task is 'classification'; the task is {self.task!r}")
        for name in ("column_names", "passthrough"):
            given = getattr(self, name)
            if given is not None and len(given) != self.n_columns:
                raise ValueError(f"{name} has {len(given)} entries for {self.n_columns} columns of X")

    @property
    def may_be_counts(self) -> bool:
        """Whether the classes are whole numbers, and more than two, so that they may be counts instead of labels."""
        return self.classes is not None and len(self.classes) > 2 and self.classes.dtype.kind in "iuf"

    @property
    def has_text_labels(self) -> bool:
        """Whether the classes are texts."""
        return self.classes is not None and self.classes.dtype.kind == "U"

    @property
    def n_classes(self) -> int | None:
        return None if self.classes is None else len(self.classes)

    @property
    def has_codes(self) -> bool:
        """Whether columns of X hold codes of categories, which a fit replaces by numbers (`dkl.encodings`)."""
        return self.encoding is not None and self.encoding.has_codes

    def encoded_by(self, encoding: Any) -> Schema:
        """The schema after the columns were encoded by a `TableEncoding`."""
        names = list(encoding.column_names)
        return replace(
            self, n_columns=len(names), encoding=encoding, column_names=names, passthrough=encoding.passthrough
        )

    def y_shape(self, n_rows: int) -> tuple[int, ...]:
        """The shape of the targets of `n_rows` rows."""
        return (n_rows,) if self.n_targets is None else (n_rows, self.n_targets)

    def to_json(self) -> dict[str, Any]:
        """All fields as JSON values; `from_json` is the inverse."""
        # labels keep their dtype: 1, 1.0, True and "1" are different labels, some of which are equal in JSON
        classes = None if self.classes is None else {"dtype": self.classes.dtype.str, "values": self.classes.tolist()}
        # Missing in stores of older releases; omitted if None, so that their digests do not change.
        read = {} if self.first_index is None else {"first_index": self.first_index}
        return {
            "n_columns": self.n_columns,
            "dtype": self.dtype.str,
            "is_sparse": self.is_sparse,
            "task": self.task,
            "classes": classes,
            "n_targets": self.n_targets,
            "column_names": None if self.column_names is None else list(self.column_names),
            "encoding": None if self.encoding is None else self.encoding.to_json(),
            "passthrough": None if self.passthrough is None else np.flatnonzero(self.passthrough).tolist(),
            "has_weight": self.has_weight,
            "provenance": dict(self.provenance),
            "shuffle_seed": self.shuffle_seed,
            **read,
        }

    @classmethod
    def from_json(cls, facts: Mapping[str, Any]) -> Schema:
        """The schema from the result of `to_json`.

        Raises
        ------
        ValueError
            If a value has another type than `to_json` writes.
        """
        values = dict(facts)
        for name, kinds in _JSON_TYPES.items():
            value = values.get(name)
            is_odd = isinstance(value, bool) != (kinds is bool) or (isinstance(value, int) and not 0 <= value < 1 << 63)
            if name in values and (not isinstance(value, kinds) or is_odd):
                raise ValueError(f"its {name!r} is {value!r}, which no writer of dkl leaves there")
        if values["classes"] is not None:
            values["classes"] = np.array(values["classes"]["values"], dtype=values["classes"]["dtype"])
            if values["classes"].ndim != 1 or not len(values["classes"]):
                raise ValueError("its classes are no list of labels")
        if values["passthrough"] is not None:
            mask = np.zeros(values["n_columns"], bool)
            mask[values["passthrough"]] = True
            values["passthrough"] = mask
        if values["encoding"] is not None:
            # imported only if tables are used: the module loads pyarrow and pandas
            from dkl.data.ingest.encoding import TableEncoding

            values["encoding"] = TableEncoding.from_json(values["encoding"])
        return cls(**values)
