"""An array namespace whose arrays are not computed but written down: array code becomes the nodes of an ONNX graph.

Numbers that are known stay NumPy arrays; what depends on the rows is a `Symbol`. The unknown number of rows is -1 in
shapes, which is what ONNX's own Reshape takes for it.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, Union

import numpy as np
from numpy.typing import DTypeLike

Operand: TypeAlias = Union["Symbol", np.ndarray, np.generic, float]

ROWS = -1
# Symbols are numbered in the order in which they are made, so that each has a larger number than what it is made of.
_SERIAL = itertools.count()


@dataclass(frozen=True, eq=False)
class Symbol:
    """The result of one ONNX operation; `op` is "" for an input of the graph.

    Parameters
    ----------
    op : str
    inputs : sequence of Symbol or ndarray
    shape : tuple of int
        With `ROWS` for the number of rows.
    dtype : dtype
    attributes : mapping
        Of the node.
    domain : str
        "ai.onnx.ml" for operations that are not of ONNX itself.
    name : str
        Of an input.
    """

    # With this NumPy leaves `array + symbol` to the operators of the symbol.
    __array_ufunc__ = None

    op: str
    inputs: Sequence[Any]
    shape: tuple[int, ...]
    dtype: np.dtype
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    name: str = ""
    serial: int = field(default_factory=lambda: next(_SERIAL))

    @property
    def T(self) -> Symbol:
        return Symbol("Transpose", [self], self.shape[::-1], self.dtype)

    def __getitem__(self, index: tuple[int | slice | None, ...]) -> Symbol:
        """Whole axes, single places along an axis, and new axes."""
        out, axis = self, 0
        for entry in index:
            if isinstance(entry, int):
                shape = out.shape[:axis] + out.shape[axis + 1 :]
                out = Symbol("Gather", [out, np.array(entry)], shape, self.dtype, {"axis": axis})
                continue
            if entry is None:
                shape = (*out.shape[:axis], 1, *out.shape[axis:])
                out = Symbol("Unsqueeze", [out, np.array([axis])], shape, self.dtype)
            axis += 1
        return out

    def _with(self, op: str, other: Operand, *, swapped: bool = False, dtype: DTypeLike | None = None) -> Symbol:
        """The node of an operation of two operands; a number takes the dtype of the symbol, as in NumPy."""
        other = other if isinstance(other, Symbol) else np.asarray(other, self.dtype)
        # Of a - b and b - a only the order of the operands differs.
        pair = [other, self] if swapped else [self, other]
        return Symbol(op, pair, _broadcast(self.shape, other.shape), np.dtype(dtype or self.dtype))

    def __add__(self, other: Operand) -> Symbol:
        return self._with("Add", other)

    def __sub__(self, other: Operand) -> Symbol:
        return self._with("Sub", other)

    def __rsub__(self, other: Operand) -> Symbol:
        return self._with("Sub", other, swapped=True)

    def __mul__(self, other: Operand) -> Symbol:
        return self._with("Mul", other)

    def __truediv__(self, other: Operand) -> Symbol:
        return self._with("Div", other)

    def __pow__(self, other: int) -> Symbol:
        return self._with("Pow", other)

    def __neg__(self) -> Symbol:
        return Symbol("Neg", [self], self.shape, self.dtype)

    def __gt__(self, other: Operand) -> Symbol:
        return self._with("Greater", other, dtype=bool)

    def __ge__(self, other: Operand) -> Symbol:
        return self._with("GreaterOrEqual", other, dtype=bool)

    def __lt__(self, other: Operand) -> Symbol:
        return self._with("Less", other, dtype=bool)

    def __le__(self, other: Operand) -> Symbol:
        return self._with("LessOrEqual", other, dtype=bool)

    def __and__(self, other: Operand) -> Symbol:
        return self._with("And", other, dtype=bool)

    __radd__, __rmul__ = __add__, __mul__


def graph_input(name: str, width: int, dtype: DTypeLike) -> Symbol:
    """A matrix of so many columns that the graph is given."""
    return Symbol("", [], (ROWS, width), np.dtype(dtype), name=name)


def equal(x: Symbol, other: Operand) -> Symbol:
    """x == other, elementwise; symbols themselves are compared by identity."""
    return x._with("Equal", other, dtype=bool)


class SymbolNamespace:
    """The functions of the array API that the maps of `dkl.kernels.generic` are written in, for symbols.

    Parameters
    ----------
    rows : Symbol
        Any input of the graph: it knows how many rows there are.
    """

    float32, float64 = np.dtype("float32"), np.dtype("float64")

    def __init__(self, rows: Symbol) -> None:
        self._rows = rows

    def asarray(self, x: Operand, dtype: np.dtype | None = None) -> Any:
        if not isinstance(x, Symbol):
            return np.asarray(x, dtype=dtype)
        return x if dtype is None or dtype == x.dtype else Symbol("Cast", [x], x.shape, np.dtype(dtype))

    def zeros(self, shape: tuple[int, int], dtype: DTypeLike) -> Symbol:
        """Of as many rows as the graph is given."""
        # The number of rows is known when the graph runs, so the shape of the zeros is computed there.
        count = Symbol("Shape", [self._rows], (1,), np.dtype("int64"), {"start": 0, "end": 1})
        target = Symbol("Concat", [count, np.array(shape[1:])], (2,), np.dtype("int64"), {"axis": 0})
        return Symbol("Expand", [np.zeros((1, shape[1]), dtype), target], shape, np.dtype(dtype))

    def ones(self, shape: tuple[int, int], dtype: DTypeLike) -> Symbol:
        """Of as many rows as the graph is given."""
        return self.zeros(shape, dtype) + 1

    def zeros_like(self, x: Symbol) -> Symbol:
        return x * 0

    def ones_like(self, x: Symbol) -> Symbol:
        return x * 0 + 1

    def concat(self, parts: Sequence[Any], axis: int = 0) -> Any:
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return Symbol("Concat", parts, tuple(shape), parts[0].dtype, {"axis": axis})

    def stack(self, parts: Sequence[Any], axis: int = 0) -> Any:
        index = (*(slice(None),) * axis, None)
        return self.concat([part[index] for part in parts], axis=axis)

    def take(self, x: Symbol | np.ndarray, places: Symbol | np.ndarray, axis: int = 0) -> Any:
        # What is known beforehand is computed now, and becomes a constant of the graph.
        if not isinstance(x, Symbol) and not isinstance(places, Symbol):
            return np.take(x, places, axis=axis)
        shape = (*x.shape[:axis], *places.shape, *x.shape[axis + 1 :])
        return Symbol("Gather", [x, places], shape, x.dtype, {"axis": axis})

    def matmul(self, x: Symbol, matrix: np.ndarray) -> Symbol:
        return Symbol("MatMul", [x, matrix], (x.shape[0], matrix.shape[1]), x.dtype)

    def where(self, condition: Symbol, x: Operand, y: Operand) -> Symbol:
        # ONNX wants both operands in one type: a number takes that of the symbol beside it.
        dtype = x.dtype if isinstance(x, Symbol) else np.asarray(y).dtype if not isinstance(y, Symbol) else y.dtype
        operands = [operand if isinstance(operand, Symbol) else np.asarray(operand, dtype) for operand in (x, y)]
        shape = _broadcast(condition.shape, _broadcast(operands[0].shape, operands[1].shape))
        return Symbol("Where", [condition, *operands], shape, dtype)

    def clip(self, x: Symbol, low: float, high: float) -> Symbol:
        return Symbol("Clip", [x, np.asarray(low, x.dtype), np.asarray(high, x.dtype)], x.shape, x.dtype)

    def reshape(self, x: Symbol, shape: tuple[int, ...]) -> Symbol:
        return Symbol("Reshape", [x, np.array(shape)], shape, x.dtype)

    def sum(self, x: Symbol, axis: int) -> Symbol:
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        return Symbol("ReduceSum", [x, np.array([axis])], shape, x.dtype, {"keepdims": 0})

    def cos(self, x: Symbol) -> Symbol:
        return _elementwise("Cos", x)

    def sin(self, x: Symbol) -> Symbol:
        return _elementwise("Sin", x)

    def floor(self, x: Symbol) -> Symbol:
        return _elementwise("Floor", x)

    def exp(self, x: Symbol) -> Symbol:
        return _elementwise("Exp", x)

    def sqrt(self, x: Symbol) -> Symbol:
        return _elementwise("Sqrt", x)

    def abs(self, x: Symbol) -> Symbol:
        return _elementwise("Abs", x)

    def isfinite(self, x: Symbol) -> Symbol:
        # x - x is NaN for NaN and for infinities, else 0.
        return equal(x - x, 0)

    def all(self, x: Symbol) -> bool:
        """A graph raises no errors: rows are taken to pass the checks of the arithmetic."""
        return True


def _elementwise(op: str, x: Symbol) -> Symbol:
    """The node of a function of each number."""
    return Symbol(op, [x], x.shape, x.dtype)


def _broadcast(first: tuple[int, ...], second: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of an operation of two arrays, by NumPy's rules; an unknown number of rows stays unknown."""
    # Shapes that are known are NumPy's to combine, with its errors.
    if ROWS not in (*first, *second):
        return np.broadcast_shapes(first, second)
    length = max(len(first), len(second))
    pairs = zip((1,) * (length - len(first)) + first, (1,) * (length - len(second)) + second, strict=True)
    return tuple(ROWS if ROWS in pair else max(pair) for pair in pairs)


def needed(outputs: Sequence[Symbol]) -> list[Symbol]:
    """Every symbol that the outputs are made of, each after what it is made of."""
    reached: dict[int, Symbol] = {}
    waiting = list(outputs)
    while waiting:
        symbol = waiting.pop()
        if symbol.serial not in reached:
            reached[symbol.serial] = symbol
            waiting.extend(operand for operand in symbol.inputs if isinstance(operand, Symbol))
    # Inputs have smaller numbers than what is made of them, so this order is one in which nodes can be computed.
    return [reached[serial] for serial in sorted(reached)]
