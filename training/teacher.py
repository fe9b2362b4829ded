"""Distillation: a finished model's opinion on training examples."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from secateur.model.pruner import Pruner
from secateur.training.data import Example
from secateur.types import Passage, PrunedPassage, PruneOptions, ResultOrder, TextSpan


class Teacher:
    """Adds sentence probabilities and a passage logit to examples.

    Any checkpoint that :class:`Pruner` loads can teach, whatever its tokenizer: opinions are
    on sentences and passages, not on tokens. A plain reranker teaches the score only.
    """

    def __init__(self, pruner: Pruner, share: float) -> None:
        """share: part of each target, in [0, 1], that the teacher's probability replaces.

        Raises ValueError for a share out of range.
        """
        if not 0 <= share <= 1:
            raise ValueError(f"teacher_share is {share}, must be in [0, 1]")
        self._pruner = pruner
        self._share = share

    def annotate(self, group: Sequence[Example]) -> list[Example]:
        """The candidates of one question, with blended targets and ``teacher_score``.

        Raises InvalidRequestError for a row whose sentences break the rules of the service
        (sorted, disjoint, nothing but white space between them).
        """
        passages = [
            Passage(
                text=example.passage,
                title=example.title,
                sentences=tuple(TextSpan(start, end) for start, end in example.sentences),
            )
            for example in group
        ]
        # Threshold 0 prunes nothing, which models that only rank insist on.
        options = PruneOptions(threshold=0.0, order=ResultOrder.INPUT, truncate_query=True)
        answer = self._pruner.rerank_and_prune(group[0].query, passages, options)
        return [
            self._annotated(example, result)
            for example, result in zip(group, answer.results, strict=True)
        ]

    def _annotated(self, example: Example, result: PrunedPassage) -> Example:
        if result.error is not None:
            return example
        targets = example.targets
        if self._pruner.info.can_prune:
            targets = tuple(
                target
                if sentence.probability is None
                else (1 - self._share) * target + self._share * sentence.probability
                for target, sentence in zip(targets, result.sentences, strict=True)
            )
        return replace(example, targets=targets, teacher_score=result.relevance_logit)
