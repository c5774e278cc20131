"""Numbers in texts: the decimal mark, the thousands mark and the unit that most values of a column share."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dkl.data.ingest.precision import EXACT

Mark = Literal[".", ","]
DefaultMark = Literal[".", ";", ","]
"""The decimal mark of a column whose values leave it open: a point; with ";", the only mark of the numbers, be it a
point or a comma, as in files whose values are separated by semicolons; or a comma, as in other columns of the table."""

PLAIN, LEADING_ZERO = "9", "09"
"""Shapes of whole numbers without any mark: ordinary ones, and those with a leading zero such as 0123."""
# Other shapes contain the marks at their places. A single point or comma before exactly three digits ("9.999", "9,999")
# may be a decimal or a thousands mark; before any other number of digits ("9.9", "9,9") it is a decimal mark.
_DECIMALS: dict[Mark, tuple[str, str]] = {".": ("9.9", "9.999"), ",": ("9,9", "9,999")}

_CURRENCIES = (
    "AED|ARS|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KRW|MXN|MYR|NGN|NOK|NZD|"
    "PEN|PHP|PKR|PLN|RON|RSD|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)
# The parts of a number: a sign, a currency, digits with marks between them, a unit. A text with other letters in front
# is a name ("v12", "Q4"). A number in brackets, or with a minus behind it, is negative.
_NUMBER = (
    r"^(?P<open>\(?)(?P<minus>[+-]?) ?(?P<before>[A-Za-z]{0,3}\p{Sc}|(?:" + _CURRENCIES + r"|Rs\.?|kr\.?))? ?"
    r"(?P<inner>[+-]?)(?P<body>(?:\d(?:[\d.,' _]*\d)?[.,]?|[.,]\d+)(?:[eE][+-]?\d+)?)"
    r" ?(?P<after>[^\d\s()+.,'_-](?:[^\d()]{0,14}[^\d\s()+-])?[23]?)?(?P<close>[)-]?)$"
)
_WHOLE = re.compile(r"[9zo]+")
_ONE_MARK = re.compile(r"([9zo]*)([.,])(9*)")
# Groups of three digits; with commas also groups of two digits before a last group of three, as written in India.
_GROUPS = re.compile(r"[9zo]{1,3}(?:([.,' _])999)(?:\1(?:999))*(?:([.,])9*)?")
_INDIAN = re.compile(r"[9z]{1,2}(?:,99)+,999(?:\.9*)?")
# Words that mean "missing" where numbers or dates are expected, as do all texts without letters and digits.
MISSING_MARKS = ("none", "<na>", r"\n", "nat", "n.a.", "na", "n/a", "#n/a", "nan", "null", "(null)", "missing")
# Number of spellings of a column that are parsed, the most frequent ones; texts in other spellings are not numbers.
_MOST_SPELLINGS = 1_000


class Spelling(NamedTuple):
    """How a number is written: currency, shape and unit."""

    before: str
    shape: str
    after: str

    @property
    def unit(self) -> tuple[str, str]:
        """Currency and unit, the unit in lower case."""
        return self.before, self.after.lower()

    @property
    def is_whole(self) -> bool:
        """Whether it has no marks other than thousands marks."""
        return self.shape in (PLAIN, LEADING_ZERO) or self.shape == _groups(self.thousands, "")

    @property
    def thousands(self) -> str:
        """The mark between groups of digits; empty without groups, or for a single mark that may be a decimal mark."""
        return self.shape[1] if self.shape.count("999") == 2 else ""


def has_ambiguous_mark(spelling: Spelling) -> bool:
    """Whether the only mark stands before three digits, so that it may be a decimal or a thousands mark."""
    return spelling.shape in (_DECIMALS["."][1], _DECIMALS[","][1])


@dataclass(frozen=True)
class NumberForm:
    """How a column writes its numbers.

    Parameters
    ----------
    decimal : {".", ","}
    thousands : {"", ",", ".", " ", "'", "_"}
        The mark between groups of three digits; numbers without groups also have this form.
    before, after : str
        The currency in front of the number, and the unit behind it.
    other : NumberForm or None
        The form of columns that do not have this one, in files whose columns may have two decimal marks.

    Examples
    --------
    >>> form = NumberForm.of("1.234,56 €")
    >>> form.decimal, form.thousands, form.after, str(form)
    (',', '.', '€', '1.234,56 €')
    """

    decimal: Mark = "."
    thousands: str = ""
    before: str = ""
    after: str = ""
    other: NumberForm | None = None

    def __str__(self) -> str:
        """The number 1234.56 in this form, and in the other one behind a bar."""
        space = " " if self.after and not self.after.startswith("%") else ""
        own = f"{self.before}1{self.thousands}234{self.decimal}56{space}{self.after}"
        return own if self.other is None else f"{own}|{self.other}"

    @classmethod
    def of(cls, written: str) -> NumberForm:
        """The form in which `written` is 1234.56; without any marks or unit if it is empty."""
        if not written:
            return cls()
        if "|" in written:
            first, second = map(cls.of, written.split("|"))
            return replace(first, other=second)
        found = re.fullmatch(r"(.*?)1([,. '_]?)234([.,])56 ?(.*)", written)
        if found is None:
            raise ValueError(f"{written!r} does not write 1234.56; expected a text such as '1.234,56 €'")
        before, thousands, decimal, after = found.groups()
        return cls(decimal, thousands, before, after)  # type: ignore[arg-type]

    def with_decimal(self, decimal: Mark) -> NumberForm:
        """The form with this decimal mark, and the other mark between groups of digits."""
        return replace(self, decimal=decimal, thousands="." if decimal == "," else ",")

    @cached_property
    def shapes(self) -> frozenset[str]:
        """The shapes, such as "9,999.9", of numbers in this form, with and without groups and fractions."""
        other: Mark = "," if self.decimal == "." else "."
        found = {PLAIN, LEADING_ZERO, *_DECIMALS[self.decimal]}
        if self.thousands:
            found |= {_groups(self.thousands, ""), _groups(self.thousands, self.decimal)}
        if self.thousands == other:
            found.add(_DECIMALS[other][1])
        return frozenset(found)

    def reads(self, spelling: Spelling) -> bool:
        """Whether numbers with this spelling have this form."""
        return spelling.unit == (self.before, self.after.lower()) and spelling.shape in self.shapes

    def numbers(self, texts: pa.Array) -> np.ndarray:
        """Texts as numbers: (n,) float64, NaN for missing texts and those that are not numbers of this form."""
        return self.numbers_of(NumberParts.of(texts))

    def numbers_of(self, parts: NumberParts) -> np.ndarray:
        """`numbers` of texts that are parsed already; of two forms, all texts are read in the one that reads more."""
        values = np.full(len(parts.place), np.nan)
        for place, spelling in enumerate(parts.spellings):
            if self.reads(spelling):
                at = np.flatnonzero(parts.place == place)
                values[at] = parts.numbers(at, self.thousands)
        if self.other is None:
            return values
        # read one by one, 12.35 would be a number of points beside 6.287, a number of thousands, in the same column
        others = self.other.numbers_of(parts)
        return others if np.isnan(others).sum() < np.isnan(values).sum() else values


@dataclass(frozen=True, eq=False)
class NumberParts:
    """Texts parsed as numbers: the spelling, the digits and the sign of each.

    Parameters
    ----------
    spellings : list of Spelling
        The distinct spellings.
    place : ndarray of shape (n,), int64
        The position in `spellings` of each text's spelling; -1 for texts that are not numbers.
    body : pyarrow.Array of n texts
        Digits and marks.
    negative : ndarray of shape (n,), bool
    """

    spellings: list[Spelling]
    place: np.ndarray
    body: pa.Array
    negative: np.ndarray

    @classmethod
    def of(cls, texts: pa.Array) -> NumberParts:
        """The parts of texts, of which some may be missing."""
        plain = with_plain_signs(texts)
        # a search for digits is cheap and rules out most texts that are not numbers
        may_be = pc.fill_null(pc.match_substring_regex(plain, r"^[^\p{L}]{0,6}(?:\p{L}{1,3}.{0,3})?[\d.,]"), False)
        if not pc.any(may_be).as_py():
            return cls([], np.full(len(texts), -1), pa.nulls(len(texts), pa.string()), np.zeros(len(texts), dtype=bool))
        found = pc.extract_regex(pc.if_else(may_be, plain, None), _NUMBER)
        part = {name: pc.struct_field(found, name) for name in ("open", "minus", "before", "inner", "body", "after")}
        close = pc.struct_field(found, "close")
        is_opened, is_closed = pc.equal(part["open"], "("), pc.equal(close, ")")
        # brackets must be closed, and a number has at most one sign
        signs = [pc.not_equal(part["minus"], ""), pc.not_equal(part["inner"], ""), pc.not_equal(close, "")]
        number = pc.add(pc.add(*(sign.cast(pa.int8()) for sign in signs[:2])), signs[2].cast(pa.int8()))
        sound = pc.and_(pc.equal(is_opened, is_closed), pc.less_equal(number, 1))
        sound = np.asarray(pc.fill_null(sound, False).to_numpy(zero_copy_only=False))
        minuses = [pc.equal(sign, "-") for sign in (part["minus"], part["inner"], close)]
        negative = pc.or_(pc.or_(minuses[0], minuses[1]), pc.or_(minuses[2], is_opened))
        ways = pc.binary_join_element_wise(part["before"], _signature(part["body"]), part["after"], "\x1f")
        coded = pc.dictionary_encode(pc.if_else(pa.array(sound), ways, None))
        codes = np.asarray(pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)).astype(np.int64)
        spellings: dict[Spelling, int] = {}
        place_of = np.full(len(coded.dictionary) + 1, -1)
        if len(coded.dictionary) <= _MOST_SPELLINGS:
            known = range(len(coded.dictionary))
        else:
            counts = np.bincount(codes[codes >= 0], minlength=len(coded.dictionary))
            known = np.sort(np.argsort(-counts, kind="stable")[:_MOST_SPELLINGS]).tolist()
        ways_there = coded.dictionary.to_pylist()
        for code in known:
            before, signature, after = ways_there[code].split("\x1f")
            shape = _shape(signature)
            if shape is not None:
                place_of[code] = spellings.setdefault(Spelling(before, shape, after), len(spellings))
        negative = np.asarray(pc.fill_null(negative, False).to_numpy(zero_copy_only=False))
        return cls(list(spellings), place_of[codes], part["body"], negative)

    def inexact(self, values: np.ndarray) -> np.ndarray:
        """The positions of whole numbers that float64 does not represent exactly; `values` are the texts as float64."""
        whole = [place for place, spelling in enumerate(self.spellings) if spelling.is_whole]
        large = np.flatnonzero(np.isin(self.place, whole) & (np.abs(values) >= EXACT))
        digits = pc.replace_substring_regex(self.body.take(pa.array(large)), r"[.,' _]", "").to_pylist()
        # numbers with an exponent are measurements, which may be rounded
        wrong = [text.isdigit() and int(float(text)) != int(text) for text in digits]
        return large[np.array(wrong, bool)]

    def numbers(self, at: np.ndarray, thousands: str) -> np.ndarray:
        """The texts at positions `at` as float64, without the thousands mark; any other comma is a decimal mark."""
        body = self.body.take(pa.array(at))
        if thousands:
            body = pc.replace_substring(body, thousands, "")
        values = pc.replace_substring(body, ",", ".").cast(pa.float64()).to_numpy(zero_copy_only=False)
        return np.where(self.negative[at], -values, values)


def with_plain_signs(texts: pa.Array) -> pa.Array:
    """Texts without surrounding blanks, and with ASCII characters for variants of blank, apostrophe and minus."""
    plain = pc.utf8_trim_whitespace(texts)
    if pc.any(pc.invert(pc.string_is_ascii(plain))).as_py():
        for variants, sign in (("[\u00a0\u2007\u2009\u202f]", " "), ("[\u2018\u2019´`]", "'"), ("[\u2212\u2013]", "-")):
            plain = pc.replace_substring_regex(plain, variants, sign)
    return plain


def means_missing(texts: pa.Array) -> np.ndarray:
    """Whether each text means "missing" where numbers or dates are expected: (n,) bool."""
    plain = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    has_sign = pc.match_substring_regex(plain, r"[\p{L}\p{N}]")
    marks = pc.is_in(plain, value_set=pa.array(MISSING_MARKS, plain.type))
    return np.asarray(pc.fill_null(pc.or_(pc.invert(has_sign), marks), False).to_numpy(zero_copy_only=False))


def two_spellings(texts: pa.Array, values: np.ndarray) -> tuple[str, str] | None:
    """The first two of the distinct texts that write the same number; None if there are none."""
    # 0 and -0 are ignored
    there = np.flatnonzero(~np.isnan(values) & (values != 0))
    _, first, which = np.unique(values[there], return_index=True, return_inverse=True)
    again = np.flatnonzero(first[which] != np.arange(len(there)))
    if not len(again):
        return None
    place = int(again[0])
    return texts[int(there[first[which[place]]])].as_py(), texts[int(there[place])].as_py()


def most_common_form(
    counts: Mapping[Spelling, int], decimal: Mark | None = None, default: DefaultMark = "."
) -> tuple[NumberForm, bool]:
    """The form of most numbers of a column, and whether a form with another decimal mark would read as many.

    Parameters
    ----------
    counts : mapping of Spelling to int
        How often each spelling occurs; at least one.
    decimal : {".", ","} or None
        The decimal mark that the user chose.
    default : {".", ";", ","}
        The decimal mark of numbers that allow both: see `DefaultMark`.
    """
    units: dict[tuple[str, str], int] = {}
    for spelling, count in counts.items():
        units[spelling.unit] = units.get(spelling.unit, 0) + count
    unit = max(units, key=lambda each: units[each])
    own = {spelling: count for spelling, count in counts.items() if spelling.unit == unit}
    usual_one = max(own, key=lambda spelling: own[spelling])
    shapes = {spelling.shape for spelling in own}
    if all(spelling.is_whole for spelling in own):
        # whole numbers show no decimal mark, so that the other default does not apply
        default = "."
    marks = [NumberForm()] if shapes <= {PLAIN, LEADING_ZERO} else _forms(decimal, default)
    forms = [replace(form, before=usual_one.before, after=usual_one.after) for form in marks]
    read = [sum(count for spelling, count in own.items() if form.reads(spelling)) for form in forms]
    # the first one of the forms that read equally many numbers
    form = forms[read.index(max(read))]
    rivals = [other for other, count in zip(forms, read, strict=True) if count == max(read)]
    # a point is not ambiguous unless the table has other signs of decimal commas
    is_ambiguous = any(has_ambiguous_mark(spelling) and (default != "." or "," in spelling.shape) for spelling in own)
    return form, decimal is None and is_ambiguous and any(other.decimal != form.decimal for other in rivals)


def _forms(decimal: Mark | None, default: DefaultMark) -> list[NumberForm]:
    """The possible forms without units, the preferred ones first."""
    points = [NumberForm(".", thousands) for thousands in ("", ",", " ", "'", "_")]
    commas = [NumberForm(",", thousands) for thousands in ("", ".", " ", "'")]
    if decimal is not None:
        return points if decimal == "." else commas
    if default == ";":
        return [points[0], *commas, *points[1:]]
    return [*points, *commas] if default == "." else [*commas, *points]


def _signature(bodies: pa.Array) -> pa.Array:
    """Numbers with each digit replaced by 9, so that marks and the lengths of digit groups remain.

    A leading 0 becomes z before a digit and o before a mark; more than four digits in a row become four.
    """
    for pattern, sign in ((r"^0(\d)", r"z\1"), (r"^0([.,])", r"o\1"), (r"\d", "9"), (r"9{4,}", "9999")):
        bodies = pc.replace_substring_regex(bodies, pattern, sign)
    return bodies


def _shape(signature: str) -> str | None:
    """The shape of numbers with this signature; None if marks are at impossible places."""
    digits, exponent, _ = signature.lower().partition("e")
    if _WHOLE.fullmatch(digits):
        return LEADING_ZERO if digits[0] == "z" and not exponent else PLAIN
    if found := _ONE_MARK.fullmatch(digits):
        whole, mark, rest = found.groups()
        may_be_thousands = rest == "999" and whole in ("9", "99", "999") and not exponent
        return f"9{mark}{'999' if may_be_thousands else '9'}"
    if _INDIAN.fullmatch(digits):
        return _groups(",", "." if "." in digits else "")
    found = _GROUPS.fullmatch(digits)
    if found is None or found[1] == found[2] or exponent:
        return None
    if digits[0] == "z" and found[2] is None:
        return LEADING_ZERO
    return _groups(found[1], found[2] or "")


def _groups(thousands: str, decimal: str) -> str:
    """The shape of numbers with a thousands mark and, if `decimal` is not empty, a decimal mark."""
    return f"9{thousands}999{thousands}999{decimal}"
