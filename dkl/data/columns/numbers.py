"""How texts write numbers: the decimal mark, the thousands mark and the unit that most values of a column share."""

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
UsualMark = Literal[".", ";", ","]
"""The decimal mark where a column leaves it open: a point; a comma in place of a thousands mark, since semicolons
delimit the values; or a comma in any case, since other columns of the table have it."""

PLAIN, LEADING_ZERO = "9", "09"
"""Shapes of whole numbers without any mark: those in which nothing is wrong, and those such as 0123."""
# The other shapes show which marks stand where. A single point or comma before exactly three digits ("9.999", "9,999")
# may be either mark; before other digits ("9.9", "9,9") it is a decimal one.
_DECIMALS: dict[Mark, tuple[str, str]] = {".": ("9.9", "9.999"), ",": ("9,9", "9,999")}

_CURRENCIES = (
    "AED|ARS|AUD|BGN|BRL|CAD|CHF|CLP|CNY|COP|CZK|DKK|EGP|EUR|GBP|HKD|HUF|IDR|ILS|INR|ISK|JPY|KRW|MXN|MYR|NGN|NOK|NZD|"
    "PEN|PHP|PKR|PLN|RON|RSD|RUB|SAR|SEK|SGD|THB|TRY|TWD|UAH|USD|VND|ZAR"
)
# A sign, a currency, digits with marks between them, a unit: the parts of what may be a number. Letters in front that
# are no currency make a name of it ("v12", "Q4"). Brackets around a number, and a minus behind it, make it negative.
_NUMBER = (
    r"^(?P<open>\(?)(?P<minus>[+-]?) ?(?P<before>[A-Za-z]{0,3}\p{Sc}|(?:" + _CURRENCIES + r"|Rs\.?|kr\.?))? ?"
    r"(?P<inner>[+-]?)(?P<body>(?:\d(?:[\d.,' _]*\d)?[.,]?|[.,]\d+)(?:[eE][+-]?\d+)?)"
    r" ?(?P<after>[^\d\s()+.,'_-](?:[^\d()]{0,14}[^\d\s()+-])?[23]?)?(?P<close>[)-]?)$"
)
# Letters behind a number that are a unit in whatever company; others may be a part of a name, as in 1st, 10a, 1234AB.
_MEASURES = frozenset(
    (
        "b|bn|c|cl|cm|d|day|days|dl|f|ft|g|gal|gb|ghz|h|ha|hour|hours|hp|hr|hrs|hz|in|inch|k|kb|kcal|kg|kj|km|kmh|kn|kw|"
        "kwh|l|lb|lbs|liter|litre|m|mb|mg|mi|min|mins|minutes|mio|ml|mm|mo|month|months|mph|ms|mw|mwh|nm|oz|pb|pct|"
        "percent|pt|s|sec|secs|seconds|t|tb|v|w|week|weeks|y|yd|year|years|yr|yrs|°c|°f|µg|µm|" + _CURRENCIES.lower()
    ).split("|")
)
_WHOLE = re.compile(r"[9zo]+")
_ONE_MARK = re.compile(r"([9zo]*)([.,])(9*)")
# Groups of three digits; by commas also of two before the last one, as they are written in India.
_GROUPS = re.compile(r"[9zo]{1,3}(?:([.,' _])999)(?:\1(?:999))*(?:([.,])9*)?")
_INDIAN = re.compile(r"[9z]{1,2}(?:,99)+,999(?:\.9*)?")
# Texts that mean "missing" wherever numbers or dates are expected: words, and whatever has no letter and no digit.
MISSING_MARKS = ("none", "<na>", r"\n", "nat", "n.a.", "na", "n/a", "#n/a", "nan", "null", "(null)", "missing")
# Texts of a column that are written in so many ways at most are looked at; rarer ones are no numbers.
_MOST_WAYS = 1_000


class Spelling(NamedTuple):
    """The way in which a number is written: currency, shape and unit."""

    before: str
    shape: str
    after: str

    @property
    def unit(self) -> tuple[str, str]:
        """Currency and unit, whatever the case of its letters."""
        return self.before, self.after.lower()

    @property
    def letters(self) -> str:
        """The unit behind the number, in lower case, where letters are in it; else empty."""
        return self.after.lower() if any(map(str.isalpha, self.after)) else ""

    @property
    def is_measure(self) -> bool:
        """Whether the letters after the number are a known unit of measure or a currency: kg, km/h, m², EUR."""
        return all(part.strip(" 23²³") in _MEASURES for part in self.letters.split("/"))

    @property
    def is_whole(self) -> bool:
        """Whether no mark stands in it but one between thousands."""
        return self.shape in (PLAIN, LEADING_ZERO) or self.shape == _groups(self.thousands, "")

    @property
    def thousands(self) -> str:
        """What stands between groups of digits; a single mark that may be either one is none."""
        return self.shape[1] if self.shape.count("999") == 2 else ""


def is_either_mark(spelling: Spelling) -> bool:
    """Whether the one mark of numbers stands before three digits, so that it may be either one."""
    return spelling.shape in (_DECIMALS["."][1], _DECIMALS[","][1])


@dataclass(frozen=True)
class NumberForm:
    """How a column writes its numbers.

    Parameters
    ----------
    decimal : {".", ","}
    thousands : {"", ",", ".", " ", "'", "_"}
        What stands between groups of three digits, where anything does; numbers without groups are written so, too.
    before, after : str
        A currency in front, a unit behind.

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

    def __str__(self) -> str:
        """The number 1234.56 as the column would write it."""
        space = " " if self.after and not self.after.startswith("%") else ""
        return f"{self.before}1{self.thousands}234{self.decimal}56{space}{self.after}"

    @classmethod
    def of(cls, written: str) -> NumberForm:
        """The form that writes 1234.56 so."""
        found = re.fullmatch(r"(.*?)1([,. '_]?)234([.,])56 ?(.*)", written)
        if found is None:
            raise ValueError(f"{written!r} does not write 1234.56; expected a text such as '1.234,56 €'")
        before, thousands, decimal, after = found.groups()
        return cls(decimal, thousands, before, after)  # type: ignore[arg-type]

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
        """Whether numbers that are written in a way are of this form."""
        return spelling.unit == (self.before, self.after.lower()) and spelling.shape in self.shapes

    def numbers(self, texts: pa.Array) -> np.ndarray:
        """Texts as float64 (n,), NaN where one is missing or no number of this form."""
        return self.numbers_of(NumberParts.of(texts))

    def numbers_of(self, parts: NumberParts) -> np.ndarray:
        """`numbers` of texts that were taken apart."""
        values = np.full(len(parts.place), np.nan)
        for place, spelling in enumerate(parts.spellings):
            if self.reads(spelling):
                at = np.flatnonzero(parts.place == place)
                values[at] = parts.numbers(at, self.thousands)
        return values


@dataclass(frozen=True, eq=False)
class NumberParts:
    """Texts taken apart as far as they may be numbers.

    Parameters
    ----------
    spellings : list of Spelling
        The ways in which they are written.
    place : ndarray of shape (n,), int64
        The way of each text; -1 of one that is no number.
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
        # Most texts are no numbers, which a look for a digit tells at once.
        may_be = pc.fill_null(pc.match_substring_regex(plain, r"^[^\p{L}]{0,6}(?:\p{L}{1,3}.{0,3})?[\d.,]"), False)
        if not pc.any(may_be).as_py():
            return cls([], np.full(len(texts), -1), pa.nulls(len(texts), pa.string()), np.zeros(len(texts), dtype=bool))
        found = pc.extract_regex(pc.if_else(may_be, plain, None), _NUMBER)
        part = {name: pc.struct_field(found, name) for name in ("open", "minus", "before", "inner", "body", "after")}
        close = pc.struct_field(found, "close")
        is_open, is_closed = pc.equal(part["open"], "("), pc.equal(close, ")")
        # a bracket that is opened is closed, and there is one sign
        signs = [pc.not_equal(part["minus"], ""), pc.not_equal(part["inner"], ""), pc.not_equal(close, "")]
        number = pc.add(pc.add(*(sign.cast(pa.int8()) for sign in signs[:2])), signs[2].cast(pa.int8()))
        sound = pc.and_(pc.equal(is_open, is_closed), pc.less_equal(number, 1))
        sound = np.asarray(pc.fill_null(sound, False).to_numpy(zero_copy_only=False))
        minuses = [pc.equal(sign, "-") for sign in (part["minus"], part["inner"], close)]
        negative = pc.or_(pc.or_(minuses[0], minuses[1]), pc.or_(minuses[2], is_open))
        ways = pc.binary_join_element_wise(part["before"], _signature(part["body"]), part["after"], "\x1f")
        coded = pc.dictionary_encode(pc.if_else(pa.array(sound), ways, None))
        codes = np.asarray(pc.fill_null(coded.indices, -1).to_numpy(zero_copy_only=False)).astype(np.int64)
        spellings: dict[Spelling, int] = {}
        place_of = np.full(len(coded.dictionary) + 1, -1)
        if len(coded.dictionary) <= _MOST_WAYS:
            known = range(len(coded.dictionary))
        else:
            counts = np.bincount(codes[codes >= 0], minlength=len(coded.dictionary))
            known = np.sort(np.argsort(-counts, kind="stable")[:_MOST_WAYS]).tolist()
        ways_there = coded.dictionary.to_pylist()
        for code in known:
            before, signature, after = ways_there[code].split("\x1f")
            shape = _shape(signature)
            if shape is not None:
                place_of[code] = spellings.setdefault(Spelling(before, shape, after), len(spellings))
        negative = np.asarray(pc.fill_null(negative, False).to_numpy(zero_copy_only=False))
        return cls(list(spellings), place_of[codes], part["body"], negative)

    def inexact(self, values: np.ndarray) -> np.ndarray:
        """The places of whole numbers that float64 does not hold, given what the texts are as float64."""
        whole = [place for place, spelling in enumerate(self.spellings) if spelling.is_whole]
        large = np.flatnonzero(np.isin(self.place, whole) & (np.abs(values) >= EXACT))
        digits = pc.replace_substring_regex(self.body.take(pa.array(large)), r"[.,' _]", "").to_pylist()
        # numbers with an exponent are measurements, which are rounded in any case
        wrong = [text.isdigit() and int(float(text)) != int(text) for text in digits]
        return large[np.array(wrong, bool)]

    def numbers(self, at: np.ndarray, thousands: str) -> np.ndarray:
        """The texts of some places as float64, once a thousands mark is left out; any other comma is a decimal one."""
        body = self.body.take(pa.array(at))
        if thousands:
            body = pc.replace_substring(body, thousands, "")
        values = pc.replace_substring(body, ",", ".").cast(pa.float64()).to_numpy(zero_copy_only=False)
        return np.where(self.negative[at], -values, values)


def with_plain_signs(texts: pa.Array) -> pa.Array:
    """Texts without blanks around them, and with the blank, apostrophe and minus of a keyboard for their variants."""
    plain = pc.utf8_trim_whitespace(texts)
    if pc.any(pc.invert(pc.string_is_ascii(plain))).as_py():
        for variants, sign in (("[\u00a0\u2007\u2009\u202f]", " "), ("[\u2018\u2019´`]", "'"), ("[\u2212\u2013]", "-")):
            plain = pc.replace_substring_regex(plain, variants, sign)
    return plain


def means_missing(texts: pa.Array) -> np.ndarray:
    """For each text whether it stands for no value where numbers or dates are expected: bool (n,)."""
    plain = pc.utf8_lower(pc.utf8_trim_whitespace(texts))
    has_sign = pc.match_substring_regex(plain, r"[\p{L}\p{N}]")
    marks = pc.is_in(plain, value_set=pa.array(MISSING_MARKS, plain.type))
    return np.asarray(pc.fill_null(pc.or_(pc.invert(has_sign), marks), False).to_numpy(zero_copy_only=False))


def two_spellings(texts: pa.Array, values: np.ndarray) -> tuple[str, str] | None:
    """The first two of different texts that stand for the same number; None where no two do."""
    # a zero may have a sign
    there = np.flatnonzero(~np.isnan(values) & (values != 0))
    _, first, which = np.unique(values[there], return_index=True, return_inverse=True)
    again = np.flatnonzero(first[which] != np.arange(len(there)))
    if not len(again):
        return None
    place = int(again[0])
    return texts[int(there[first[which[place]]])].as_py(), texts[int(there[place])].as_py()


def suiting_form(
    counts: Mapping[Spelling, int], decimal: Mark | None = None, usual: UsualMark = "."
) -> tuple[NumberForm, bool]:
    """The form that most of the numbers of a column are written in, and whether another one would read as many.

    Parameters
    ----------
    counts : mapping of Spelling to int
        How often each way occurs; at least one.
    decimal : {".", ","} or None
        The decimal mark, where the user has said it.
    usual : {".", ";", ","}
        What decides where one point or comma before three digits may be either mark: see `UsualMark`.
    """
    units: dict[tuple[str, str], int] = {}
    for spelling, count in counts.items():
        units[spelling.unit] = units.get(spelling.unit, 0) + count
    unit = max(units, key=lambda each: units[each])
    own = {spelling: count for spelling, count in counts.items() if spelling.unit == unit}
    usual_one = max(own, key=lambda spelling: own[spelling])
    shapes = {spelling.shape for spelling in own}
    if all(spelling.is_whole for spelling in own):
        # the decimal mark is in none of them
        usual = "."
    marks = [NumberForm()] if shapes <= {PLAIN, LEADING_ZERO} else _forms(decimal, usual)
    forms = [replace(form, before=usual_one.before, after=usual_one.after) for form in marks]
    read = [sum(count for spelling, count in own.items() if form.reads(spelling)) for form in forms]
    # of forms that read as many numbers the first one is taken
    form = forms[read.index(max(read))]
    rivals = [other for other, count in zip(forms, read, strict=True) if count == max(read)]
    # a point is a decimal mark wherever nothing else of the table has a comma
    is_open = any(is_either_mark(spelling) and (usual != "." or "," in spelling.shape) for spelling in own)
    return form, decimal is None and is_open and any(other.decimal != form.decimal for other in rivals)


def _forms(decimal: Mark | None, usual: UsualMark) -> list[NumberForm]:
    """The forms that numbers may have, without units: of those that read as many, the first one is taken."""
    points = [NumberForm(".", thousands) for thousands in ("", ",", " ", "'", "_")]
    commas = [NumberForm(",", thousands) for thousands in ("", ".", " ", "'")]
    if decimal is not None:
        return points if decimal == "." else commas
    if usual == ";":
        return [points[0], *commas, *points[1:]]
    return [*points, *commas] if usual == "." else [*commas, *points]


def _signature(bodies: pa.Array) -> pa.Array:
    """The marks of numbers and how many digits stand between them: 9 for each, z and o for a 0 at the beginning.

    A 0 before another digit is z, one before a mark is o; four digits stand for more.
    """
    for pattern, sign in ((r"^0(\d)", r"z\1"), (r"^0([.,])", r"o\1"), (r"\d", "9"), (r"9{4,}", "9999")):
        bodies = pc.replace_substring_regex(bodies, pattern, sign)
    return bodies


def _shape(signature: str) -> str | None:
    """The shape of numbers of a signature; None where the marks stand where none can."""
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
    """The shape of numbers with a thousands mark, and with a decimal one where that is not empty."""
    return f"9{thousands}999{thousands}999{decimal}"
