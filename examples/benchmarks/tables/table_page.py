"""The page of the suite: a row a set, then ranks, signs and medians over the sets; never a mean of scores over them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from cells import markdown, measured_when
from scipy.stats import binomtest, rankdata
from table_arms import ARMS, REFERENCE
from table_sets import SCORES, TableSet

Line = dict[str, Any]
# means of equal scores differ by rounding: this close they tie
TIE = 1e-9

HOW = """Each cell has the mean over the splits of the score; in parentheses how much less than by LightGBM's default is
lost on the same splits, with its standard error, so that **+ is better** whatever the score is; processor seconds of a
fit (preparing columns and choosing parameters is a part of it; a warm process, one thread), and the most memory that it
took above rows and imports, both as medians over the splits. RMSE and the mean absolute error are in standard
deviations of the training targets. Standard errors are those of the mean over splits; where there is one split, by
time, that of the delete-a-block jackknife over 20 blocks of its test rows. Splits share training rows, so that these
errors are too small, if anything."""


def standard_error(values: Sequence[float]) -> float:
    """Of the mean of values: s / sqrt(n), s^2 the sum of squared deviations over n - 1; NaN of fewer than two."""
    return float(np.std(values, ddof=1) / np.sqrt(len(values))) if len(values) > 1 else float("nan")


def jackknife_error(left_out: Sequence[float]) -> float:
    """Of a figure by what it is without each of g blocks: sqrt((g - 1) / g times the sum of squared deviations)."""
    g = len(left_out)
    return float(np.sqrt((g - 1) / g * np.sum((np.asarray(left_out) - np.mean(left_out)) ** 2)))


def sign_test(n_ahead: int, n_behind: int) -> float:
    """How likely signs are at least so unequal, either way, if both are equally likely; ties are in neither number."""
    return float(binomtest(n_ahead, n_ahead + n_behind).pvalue) if n_ahead + n_behind else 1.0


@dataclass(frozen=True)
class Standing:
    """How an arm does on one set.

    Parameters
    ----------
    score : float
        The mean over its splits.
    gain : float
        The mean of what the reference loses less what this arm loses, on the splits that both have; NaN without any.
    error : float
        The standard error of the gain.
    relative : float
        What it loses over what the reference loses, less 1.
    seconds, megabytes : float
        Medians over its splits.
    n_splits : int
    """

    score: float
    gain: float
    error: float
    relative: float
    seconds: float
    megabytes: float
    n_splits: int

    @property
    def sign(self) -> int:
        """1 ahead of the reference, -1 behind, 0 level with it or not known."""
        return 0 if not abs(self.gain) > TIE else int(np.sign(self.gain))

    @property
    def clear_sign(self) -> int:
        """The sign of a gain of more than its standard error, else 0."""
        return self.sign if abs(self.gain) > self.error else 0


@dataclass(frozen=True, eq=False)
class OneSet:
    """The lines of one set: by arm, by seed.

    Parameters
    ----------
    table : TableSet
    lines : dict
    asked : str or None
        The score that judges it, where it has that.
    n_wanted : int
        Splits.
    """

    table: TableSet
    lines: dict[str, dict[int, Line]]
    asked: str | None
    n_wanted: int

    @cached_property
    def judge(self) -> str:
        """The name of the score: as asked, as the set has it, or the area under the curve, accuracy, or RMSE."""
        names = [name for name in (self.asked, self.table.score) if name and self.table.task in SCORES[name].tasks]
        if names:
            return names[0]
        if self.table.has_numbers:
            return "rmse"
        fits = [line for lines in self.lines.values() for line in lines.values() if line["status"] == "ok"]
        return "auc" if any("auc" in line["figures"] for line in fits) else "accuracy"

    @property
    def size(self) -> str:
        line = next((line for lines in self.lines.values() for line in lines.values() if "n_rows" in line), None)
        return f"{line['n_rows']:,} x {line['n_columns']:,}" if line else ""

    def judged(self, arm: str) -> dict[int, Line]:
        """The fits of this arm that have the score."""
        lines = self.lines[arm]
        return {s: line for s, line in lines.items() if line["status"] == "ok" and self.judge in line["figures"]}

    def trouble(self, arm: str) -> Line | None:
        """The first line of this arm that has no score."""
        judged = self.judged(arm)
        return next((line for seed, line in self.lines[arm].items() if seed not in judged), None)

    def is_left_out(self, arm: str) -> bool:
        """Whether it was not to be fitted here, or has no figure of this kind (an SVM has no probabilities)."""
        lines, judged = self.lines[arm], self.judged(arm)
        without = [line["status"] for seed, line in lines.items() if seed not in judged]
        return "left out" in without or "ok" in without

    def loss(self, line: Line) -> float:
        return SCORES[self.judge].loss(line["figures"][self.judge])

    def standing(self, arm: str) -> Standing | None:
        """How the arm does here; None without a fit that has the score."""
        fits, others = self.judged(arm), self.judged(REFERENCE) if REFERENCE in self.lines else {}
        if not fits:
            return None
        both = sorted(set(fits) & set(others))
        losses, theirs = ([self.loss(of[seed]) for seed in both] for of in (fits, others))
        gains = np.subtract(theirs, losses)
        error = standard_error(gains)
        if len(both) == 1:
            error = self._error_of_one(fits[both[0]], others[both[0]])
        return Standing(
            score=float(np.mean([line["figures"][self.judge] for line in fits.values()])),
            gain=float(np.mean(gains)) if both else float("nan"),
            error=error,
            relative=_relative(float(np.mean(losses)), float(np.mean(theirs))) if both else float("nan"),
            seconds=float(np.median([line["seconds"] for line in fits.values()])),
            megabytes=float(np.median([line["megabytes"] for line in fits.values()])),
            n_splits=len(fits),
        )

    def _error_of_one(self, fit: Line, other: Line) -> float:
        """Of the difference on a single split, by blocks of its test rows."""
        left_out = [line.get("without_block", {}).get(self.judge) for line in (fit, other)]
        return jackknife_error(np.subtract(*left_out)) if None not in left_out else float("nan")

    def ranks(self, arms: Sequence[str]) -> dict[str, float] | None:
        """Ranks of these arms on the splits that all have lines of; ties share one, and no score is the last rank."""
        common = set.intersection(*(set(self.lines[arm]) for arm in arms))
        if not common:
            return None
        losses = []
        for arm in arms:
            judged = self.judged(arm)
            whole = common <= set(judged)
            losses.append(float(np.mean([self.loss(judged[seed]) for seed in sorted(common)])) if whole else np.inf)
        # infinity stays as it is: arms without a score tie
        return dict(zip(arms, map(float, rankdata(np.round(losses, 9))), strict=True))


def _relative(loss: float, theirs: float) -> float:
    if theirs == 0:
        return 0.0 if loss == 0 else float("inf")
    return loss / theirs - 1


def page(
    lines: Mapping[tuple[str, int, str], Line],
    tables: Sequence[TableSet],
    arms: Sequence[str],
    n_seeds: int,
    score: str | None = None,
) -> str:
    """The page of these sets and arms in Markdown.

    Parameters
    ----------
    lines : mapping
        By set, seed and arm, as `suite.Results` has them.
    tables : sequence of TableSet
    arms : sequence of str
    n_seeds : int
        Splits of a set whose rows have no time.
    score : str or None
        What judges the sets that have it, in place of their own.
    """
    sets = []
    for table in tables:
        seeds = table.seeds(n_seeds)
        of_arm = {a: {s: lines[table.name, s, a] for s in seeds if (table.name, s, a) in lines} for a in arms}
        sets.append(OneSet(table, of_arm, score, len(seeds)))
    used = [line for each in sets for of_arm in each.lines.values() for line in of_arm.values()]
    sections = [
        "# Tables as they come",
        f"{len(used):,} of {len(arms) * sum(each.n_wanted for each in sets):,} fits: {measured_when(used)}.",
        "\n".join(f"- {arm}: {ARMS[arm].says}{_versions(used, arm)}" for arm in arms),
        HOW,
        markdown(["set", "score", *arms], [_row(each, arms) for each in sets]),
        *_troubles(sets, arms),
        *_ranks(sets, arms),
        *_signs(sets, arms),
    ]
    return "\n\n".join(sections) + "\n"


def _versions(lines: Sequence[Line], arm: str) -> str:
    found = sorted({line["version"] for line in lines if line["arm"] == arm})
    return f" ({', '.join(found)})" if found else ""


def _row(each: OneSet, arms: Sequence[str]) -> list[str]:
    name = f"{each.table.name}, {each.size}{', by time' if each.table.time else ''}"
    return [name, SCORES[each.judge].name, *(_cell(each, arm) for arm in arms)]


def _cell(each: OneSet, arm: str) -> str:
    found, trouble = each.standing(arm), each.trouble(arm)
    if found is None:
        if trouble is None:
            return "not run"
        return "no such score" if trouble["status"] == "ok" else trouble["status"]
    shown = f"{found.score:.4f}"
    if arm != REFERENCE and np.isfinite(found.gain):
        error = f" ± {found.error:.4f}" if np.isfinite(found.error) else ""
        shown += f" ({found.gain:+.4f}{error})"
    shown += f", {found.seconds:,.2f} s, {found.megabytes:,.0f} MB"
    return shown + (f", {found.n_splits} of {each.n_wanted} splits" if found.n_splits < each.n_wanted else "")


def _troubles(sets: Sequence[OneSet], arms: Sequence[str]) -> Iterator[str]:
    """What was left out, refused or failed, in the words of the arm."""
    found = []
    for each in sets:
        for arm in arms:
            lines = [line for line in each.lines[arm].values() if line["status"] != "ok"]
            # one line of the message, so that it stays in its list
            told = {f"{line['status']}: {' '.join(line['message'].split())}" for line in lines}
            found += [f"- {arm} on {each.table.name}, {one}" for one in sorted(told)]
    if found:
        yield "## Without a score"
        yield "\n".join(found)


def _ranks(sets: Sequence[OneSet], arms: Sequence[str]) -> Iterator[str]:
    """Mean ranks of the arms that are never left out, and of all on the sets where none is."""
    always = [arm for arm in arms if not any(each.is_left_out(arm) for each in sets)]
    yield "## Mean ranks"
    yield "1 is best; ties share a rank, and an arm that refused a set or failed on it has the last one there."
    yield _rank_list(sets, always)
    if len(always) < len(arms):
        whole = [each for each in sets if not any(each.is_left_out(arm) for arm in arms)]
        yield "With the arms that are left out of some sets, on the others:"
        yield _rank_list(whole, arms)


def _rank_list(sets: Sequence[OneSet], arms: Sequence[str]) -> str:
    ranks = {each.table.name: each.ranks(arms) for each in sets} if arms else {}
    ranked = {name: found for name, found in ranks.items() if found is not None}
    if not ranked:
        return f"None of {len(sets)} sets has a split that all of these arms have a line of: {', '.join(arms)}."
    rows = []
    for arm in sorted(arms, key=lambda arm: np.mean([found[arm] for found in ranked.values()])):
        mean, median = (float(of([found[arm] for found in ranked.values()])) for of in (np.mean, np.median))
        rows.append([arm, f"{mean:.2f}", f"{median:g}", contributor(ranked, arm)])
    head = [
        "arm",
        f"mean rank on {len(ranked)} of {len(sets)} sets",
        "median",
        "the difference to LightGBM's is owed to",
    ]
    return markdown(head, rows)


def contributor(ranks: Mapping[str, Mapping[str, float]], arm: str) -> str:
    """The set that adds most to the difference of the arm's mean rank to the reference's, and what it is without it.

    Differences are of the reference's rank less the arm's, so that + is better.
    """
    if arm == REFERENCE or REFERENCE not in next(iter(ranks.values())):
        return ""
    differences = {name: found[REFERENCE] - found[arm] for name, found in ranks.items()}
    total = sum(differences.values())
    toward = np.sign(total)
    # of a difference of nothing in sum, the largest either way
    largest = max(differences, key=lambda name: differences[name] * toward if toward else abs(differences[name]))
    if not differences[largest]:
        return "none: they tie on every set"
    rest = (total - differences[largest]) / (len(differences) - 1) if len(differences) > 1 else 0.0
    return f"{largest} ({differences[largest]:+g} of {total:+g} ranks); {rest:+.2f} without it"


def _signs(sets: Sequence[OneSet], arms: Sequence[str]) -> Iterator[str]:
    """Each arm beside the reference: on how many sets it is ahead, and medians over the sets that both have."""
    yield "## Beside LightGBM's default"
    yield (
        "A set counts for who loses less, by however little (ties count for nobody; the sign test is two-sided), and "
        "once more by more than a standard error. Medians are over sets: what is lost beside what LightGBM loses, "
        "seconds as a multiple of LightGBM's, memory as it is."
    )
    rows = []
    for arm in arms:
        both = [(each.standing(arm), each.standing(REFERENCE)) for each in sets] if REFERENCE in arms else []
        pairs = [(own, other) for own, other in both if own and other and np.isfinite(own.gain)]
        if arm == REFERENCE or not pairs:
            continue
        own = [pair[0] for pair in pairs]
        signs = [standing.sign for standing in own]
        clear = [standing.clear_sign for standing in own if np.isfinite(standing.error)]
        ahead, behind = signs.count(1), signs.count(-1)
        rows.append(
            [
                arm,
                f"{len(own)} of {len(sets)}",
                f"{ahead} : {behind}",
                f"{sign_test(ahead, behind):.3f}",
                f"{clear.count(1)}, {clear.count(0)}, {clear.count(-1)}",
                f"{100 * np.median([standing.relative for standing in own]):+.1f} %",
                f"{np.median([mine.seconds / max(other.seconds, 1e-3) for mine, other in pairs]):.1f}",
                f"{np.median([standing.megabytes for standing in own]):,.0f} MB",
            ]
        )
    head = ["arm", "sets", "ahead : behind", "sign test", "ahead, within, behind by a standard error"]
    yield (
        markdown([*head, "median of loss", "median of seconds", "median of memory"], rows) if rows else "No pairs yet."
    )
