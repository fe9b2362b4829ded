"""Whether two sides say the same: decisions, rankings, logits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from secateur.errors import InvariantError

TOP = 10
"""How much of a ranking is compared."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What a side says of one passage.

    logit: raw. kept: of each sentence. windows: model inputs that it was read in.
    """

    logit: float
    kept: tuple[bool, ...]
    windows: int


@dataclass(frozen=True, slots=True)
class Agreement:
    """How far a side agrees with its reference, over the queries that both answered.

    equal_decisions: share of sentences with the same kept flag; ``None`` where no passage can be
    compared. equal_top10: share of queries whose first ten passages are the same, in the same
    order. max_logit_difference: the largest of a passage; ``None`` likewise.
    """

    equal_decisions: float | None
    equal_top10: float
    max_logit_difference: float | None


def agreement(
    ours: Mapping[int, Sequence[Verdict]],
    reference: Mapping[int, Sequence[Verdict]],
    *,
    single_windows: bool,
) -> Agreement:
    """Compare the verdicts of each query, by number, in the order of its passages.

    single_windows: judge decisions and logits only on passages that both read in one window.
    Raises InvariantError when a passage has other sentences, or no query was answered by both.
    """
    same = sentences = top = 0
    differences: list[float] = []
    queries = sorted(ours.keys() & reference.keys())
    if not queries:
        raise InvariantError("two sides that answered no query both; this is a bug")
    for query in queries:
        for own, theirs in zip(ours[query], reference[query], strict=True):
            if len(own.kept) != len(theirs.kept):
                raise InvariantError("two sides split a passage differently; this is a bug")
            if single_windows and max(own.windows, theirs.windows) > 1:
                continue
            same += sum(a == b for a, b in zip(own.kept, theirs.kept, strict=True))
            sentences += len(own.kept)
            differences.append(abs(own.logit - theirs.logit))
        top += ranking(ours[query])[:TOP] == ranking(reference[query])[:TOP]
    return Agreement(
        equal_decisions=same / sentences if sentences else None,
        equal_top10=top / len(queries),
        max_logit_difference=max(differences, default=None),
    )


def ranking(verdicts: Sequence[Verdict]) -> list[int]:
    """Passages by logit, highest first; ties in the order given."""
    return sorted(range(len(verdicts)), key=lambda index: -verdicts[index].logit)
