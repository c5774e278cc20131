"""The results of a race of candidates in words: the table of those tried, the reasons, and one sentence."""

from __future__ import annotations

import re
from dataclasses import dataclass

from dkl.linear.judge import mean_over_folds
from dkl.machines.contenders import Contender
from dkl.machines.contest import Candidate, Race
from dkl.progress import short_score

# Why a candidate was not tried, by its `left_out`, as a clause of the reasons.
_WHY_UNTRIED = {
    "takes more work": "that takes more work",
    "takes more time": "that takes more time",
    "not among the trials": "not among the given trials",
}


@dataclass(frozen=True)
class Tried:
    """The score of a candidate on held-out rows.

    Parameters
    ----------
    name : str
        The name that the reasons use.
    score : float or None
        1 minus the mean loss on the held-out rows, which is R^2 where numbers are fitted by squares; None if it was not
        tried, or failed.
    folds : int
        Number of folds that it was scored on.
    outcome : {"chosen", "level, less plain", "worse", "failed"} or why it was not tried
        "level, less plain": its loss is at most that of the chosen one, which is simpler or expected to gain from more
        landmarks. Not tried are candidates for which the budget ("takes more work") or the time limit ("takes more
        time") does not suffice, and those that a given list of trials leaves out ("not among the trials").
    """

    name: str
    score: float | None
    folds: int
    outcome: str


def tried_table(race: Race, won: Candidate) -> tuple[Tried, ...]:
    """Every candidate that was tried, or left out for a reason: the chosen one first, then by score."""
    rows = []
    for one in race.candidates:
        if one.choices:
            level = one.ratio(won) <= 1.0
            outcome = "chosen" if one is won else "level, less plain" if level else "worse"
            rows.append(Tried(one.contender.name, 1.0 - race.shown_loss(one), len(one.choices), outcome))
        elif one.left_out == "failed" or one.left_out in _WHY_UNTRIED:
            rows.append(Tried(one.contender.name, None, 0, one.left_out))
    return tuple(sorted(rows, key=lambda row: (row.outcome != "chosen", row.score is None, -(row.score or 0.0))))


def reasons_of(
    race: Race, judged_rows: int, won: Candidate, grown: Contender | None = None, *, measure: str
) -> tuple[str, ...]:
    """Sentences on the winner, the scores of others, why the trials ended, and the landmarks of the last fit."""
    if won is not race.winner:
        why = "have nearly the best score, and gain with more landmarks,"
    elif any(race.loss(one) < race.loss(won) for one in race.scored()):
        why = "are the plainest of those whose score is level with the best"
    else:
        why = "have the best score"
    others = ", ".join(
        f"{one.contender.name} {_score_text(race, one)}"
        for one in race.candidates
        if one is not won and (one.choices or one.left_out == "failed")
    )
    untried = [one for one in race.candidates if not one.choices]
    more = "".join(
        f"; not tried, since {why}: {', '.join(names)}"
        for left_out, why in _WHY_UNTRIED.items()
        if (names := [one.contender.name for one in untried if one.left_out == left_out])
    )
    last = () if grown is None else (f"Fit: {grown.name}, since more landmarks gained and there was work left.",)
    folds = f" in {race.rounds} folds" if race.rounds > 1 else ""
    return (
        f"Features: {won.contender.name}, which {why} on held-out rows, {1.0 - race.shown_loss(won, race.rounds):.4f}"
        f"{'; also tried: ' + others if others else ''} "
        f"({measure}, of the same linear model, on {judged_rows:,} rows{folds}{more}).",
        f"Choice: ended after {len(race.tried)} trials, {race.ended}.",
        *last,
    )


def sentence_of(
    race: Race,
    won: Candidate,
    grown: Contender | None,
    measure: str,
    stopped: str = "",
    *,
    judged: str = "held-out rows",
) -> str:
    """The winner, its score on the `judged` rows, and the next best on the same rows, in one sentence."""
    name = re.sub(r" \([^()]*\)", "", (grown or won.contender).name)
    able = [one for one in race.scored() if one is not won]
    compared = f"{sum(bool(one.choices) for one in race.candidates)} tried"
    if able:
        second = min(able, key=race.loss)
        score, own = shown_score(race, second), shown_score(race, won)
        # candidates are compared by their loss, which is more precise than their accuracy; of two that are level the
        # simpler one wins
        by_loss, is_level = " by its loss" * (score > own), race.loss(second) <= race.loss(won)
        which = f"level{by_loss} with" if is_level else f"next best{by_loss}"
        compared = f"{which} {short_score(score)} of {compared}"
    return f"Chose {name}: {measure} {short_score(shown_score(race, won))} on {judged} ({compared}{stopped})."


def shown_score(race: Race, one: Candidate) -> float:
    """The score in the summary: the accuracy on held-out rows, for numbers R^2 or 1 minus the loss."""
    accuracy = mean_over_folds(one.choices[: race.rounds]).accuracy
    return 1.0 - race.shown_loss(one) if accuracy is None else accuracy


def _score_text(race: Race, one: Candidate) -> str:
    """The score of a candidate on the folds that it has been scored on."""
    # scores of different folds are not comparable: folds differ by more than candidates do
    fewer = f" in the first {len(one.choices)}" if len(one.choices) < race.rounds else ""
    return "failed" if one.left_out == "failed" or not one.choices else f"{1.0 - race.shown_loss(one):.4f}{fewer}"
