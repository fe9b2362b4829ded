"""The way of a passage through the model: prepare, run, assemble, rank.

Each step is a pure function of its arguments (``run`` apart, which needs the device), so that
a server may spread them over threads and merge the windows of many requests into one batch.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from secateur.errors import FieldViolation, InvalidRequestError, InvariantError
from secateur.model import windows as packing
from secateur.model.adapter import Adapter, PairTemplate
from secateur.model.assemble import NOT_FINITE, assemble_passage, failed_passage
from secateur.model.offsets import OffsetMap
from secateur.model.passage_tokens import tokenize_passage
from secateur.model.prepared import (
    EncodedWindow,
    PreparedPassage,
    PreparedQuery,
    Scorer,
    WindowOutput,
)
from secateur.model.protect import compile_patterns
from secateur.model.token_limits import query_token_faults, title_token_faults
from secateur.model.tokenization import TextTokenizer
from secateur.types import (
    KeepRule,
    ModelInfo,
    OffsetUnit,
    Passage,
    PassageError,
    PrunedPassage,
    PruneOptions,
    ResultOrder,
    Usage,
    WarningCode,
)

if TYPE_CHECKING:
    from secateur.model.splitter import Split

__all__ = [
    "EncodedWindow",
    "Engine",
    "PreparedPassage",
    "PreparedQuery",
    "Scorer",
    "Splitter",
    "WindowOutput",
]

UNKNOWN_TOKEN_SHARE = 0.2
"""A passage with a larger share of unknown tokens raises UNSUPPORTED_SCRIPT."""


class Splitter(Protocol):
    """What the engine needs of a sentence splitter. Safe to share between threads."""

    @property
    def languages(self) -> tuple[str, ...]:
        """Language codes that ``split`` accepts."""
        ...

    def split(self, text: str, language: str = "") -> Split:
        """Sentence spans of a text, in code points."""
        ...


class Engine:
    """One loaded model with its tokenizer and splitter. All methods but ``run`` are thread-safe.

    Input is expected to have passed :func:`secateur.model.validation.validate`; what only the
    tokenizer can tell (token limits of query and title) is checked here too.
    """

    def __init__(
        self,
        tokenizer: TextTokenizer,
        scorer: Scorer,
        splitter: Splitter,
        info: ModelInfo,
        adapter: Adapter | None = None,
    ) -> None:
        self.info = info
        self.splitter = splitter
        self.tokenizer = tokenizer
        self._scorer = scorer
        self._adapter = adapter or Adapter()
        cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id
        self._template = self._adapter.template or PairTemplate((cls_id,), (sep_id,), (sep_id,))
        self._not_finite_count = 0
        self._counting = threading.Lock()

    @property
    def not_finite_count(self) -> int:
        """Passages that failed because the model's output was not finite, since loading."""
        return self._not_finite_count

    def count_tokens(self, text: str) -> int:
        """Tokens of a text, without special ones."""
        return len(self.tokenizer.encode(text).ids)

    def count_query_tokens(self, query: str) -> int:
        """Tokens of what the model sees of a query, without special ones."""
        return self.count_tokens(self._adapter.normalize_query(query))

    def prepare_query(self, query: str, options: PruneOptions) -> PreparedQuery:
        """Tokenise the query, fill in the model's defaults, compile the patterns.

        Raises InvalidRequestError: ``query`` over the model's token limit (unless
        ``truncate_query``) or without any token; invalid ``options.protected_patterns[i]``.
        """
        token_ids = self.tokenizer.encode(self._adapter.normalize_query(query)).ids
        limit = self.info.max_query_tokens
        violations = list(query_token_faults(len(token_ids), options, self.info))
        if violations:
            raise InvalidRequestError(violations)
        threshold = options.threshold
        if threshold is None:
            threshold = self.info.default_threshold
        rule = options.keep_rule or self.info.default_keep_rule
        return PreparedQuery(
            text=query,
            token_ids=token_ids[:limit],
            truncated=len(token_ids) > limit,
            options=options,
            threshold=0.0 if threshold is None else float(threshold),
            keep_rule=None if rule is None else KeepRule(rule),
            patterns=compile_patterns(options.protected_patterns),
            mean_of_pieces=self._adapter.mean_of_pieces,
        )

    def prepare_passage(
        self, query: PreparedQuery, index: int, passage: Passage
    ) -> PreparedPassage:
        """Split, tokenise and pack one passage. A blank one has no windows.

        Raises InvalidRequestError: ``passages[index].title`` over the model's token limit;
        protected patterns that match without bound.
        """
        offsets = OffsetMap(passage.text, OffsetUnit(query.options.offset_unit))
        sentences, coarse = self._split(passage, offsets, query.options.language)
        tokens = tokenize_passage(
            self.tokenizer, passage, sentences, by_sentence=self._adapter.by_sentence
        )
        violations = list(title_token_faults(len(tokens.title_ids), index, self.info))
        if violations:
            raise InvalidRequestError(violations)
        return PreparedPassage(
            index=index,
            passage=passage,
            offsets=offsets,
            sentences=sentences,
            token_starts=tokens.starts,
            token_ends=tokens.ends,
            token_sentences=tokens.sentences,
            protected=query.patterns.mask(passage.text, sentences, index),
            windows=packing.encode_windows(
                query.token_ids,
                tokens.title_ids,
                tokens.ids,
                tokens.sentences,
                template=self._template,
                window_tokens=self.info.window_tokens,
            ),
            coarse=coarse,
            unknown_token_count=int(
                np.count_nonzero((tokens.ids == self.tokenizer.unk_id) & (tokens.sentences >= 0))
            ),
        )

    def prepare_passages(
        self, query: PreparedQuery, passages: Sequence[Passage]
    ) -> list[PreparedPassage]:
        """``prepare_passage`` for each; raises InvalidRequestError with all faults at once."""
        prepared: list[PreparedPassage] = []
        violations: list[FieldViolation] = []
        for index, passage in enumerate(passages):
            try:
                prepared.append(self.prepare_passage(query, index, passage))
            except InvalidRequestError as error:
                violations.extend(error.violations)
        if violations:
            raise InvalidRequestError(violations)
        return prepared

    def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
        """One forward pass. Blocking; one thread at a time. Raises MemoryError (see Scorer)."""
        outputs = self._scorer.run(windows)
        if len(outputs) != len(windows):
            raise InvariantError("the scorer lost a window; this is a bug")
        return outputs

    def assemble(
        self, query: PreparedQuery, prepared: PreparedPassage, outputs: Sequence[WindowOutput]
    ) -> PrunedPassage:
        """The passage's result from the outputs of ``prepared.windows``, in their order."""
        result = assemble_passage(query, prepared, outputs, self.info.score_source)
        if result.error == NOT_FINITE:
            with self._counting:
                self._not_finite_count += 1
        return result

    def failed(
        self, prepared_or_index: PreparedPassage | int, passage: Passage, error: PassageError
    ) -> PrunedPassage:
        """The result of a passage that failed alone."""
        index = prepared_or_index if isinstance(prepared_or_index, int) else prepared_or_index.index
        return failed_passage(index, passage.id, error)

    def rank(
        self, query: PreparedQuery, results: Sequence[PrunedPassage]
    ) -> tuple[tuple[PrunedPassage, ...], int]:
        """Order and cut the results of a whole request, which may come in any order.

        Sorted by logit, highest first; ties and results without a score (which come last) in
        request order. ``min_relevance_score`` drops lower scores, but nothing without one: a
        failure must not vanish. Then ``top_k`` cuts, then ``order`` applies.
        Returns the results and how many were left out.
        """
        options = query.options
        ranked = sorted(results, key=_rank_key)
        minimum = options.min_relevance_score
        if minimum is not None:
            ranked = [
                r for r in ranked if r.relevance_score is None or r.relevance_score >= minimum
            ]
        if options.top_k:
            ranked = ranked[: options.top_k]
        if options.order == ResultOrder.INPUT:
            ranked.sort(key=lambda result: result.index)
        return tuple(ranked), len(results) - len(ranked)

    def usage(
        self,
        query: PreparedQuery,
        prepared: Sequence[PreparedPassage],
        results: Sequence[PrunedPassage],
    ) -> Usage:
        """Token counts of a request; ``results[i]`` is the result of ``prepared[i]``, uncut."""
        return Usage(
            query_tokens=len(query.token_ids),
            input_tokens=sum(passage.input_token_count for passage in prepared),
            kept_tokens=sum(map(kept_token_count, prepared, results)),
        )

    def warnings(self, prepared: Sequence[PreparedPassage]) -> tuple[WarningCode, ...]:
        """Conditions worth telling, each once."""
        unsupported = any(
            passage.unknown_token_count > UNKNOWN_TOKEN_SHARE * passage.scored_token_count
            for passage in prepared
        )
        return (WarningCode.UNSUPPORTED_SCRIPT,) if unsupported else ()

    def _split(
        self, passage: Passage, offsets: OffsetMap, language: str
    ) -> tuple[NDArray[np.int64], bool]:
        """Sentence spans, int64 [sentences, 2] in code points, and whether they are coarse."""
        if passage.sentences:
            borders = [
                (offsets.to_code_point(s.start_offset), offsets.to_code_point(s.end_offset))
                for s in passage.sentences
            ]
            if any(border is None for span in borders for border in span):
                raise InvariantError("caller-given sentences were not validated; this is a bug")
            return np.array(borders, dtype=np.int64).reshape(-1, 2), False
        split = self.splitter.split(passage.text, language)
        return np.array(split.spans, dtype=np.int64).reshape(-1, 2), split.coarse


def kept_token_count(prepared: PreparedPassage, result: PrunedPassage) -> int:
    """Passage tokens inside the kept sentences of a result; 0 for a failed one."""
    if result.error is not None:
        return 0
    counts = np.bincount(
        prepared.token_sentences[prepared.token_sentences >= 0], minlength=len(result.sentences)
    )
    kept = np.array([sentence.kept for sentence in result.sentences], dtype=np.bool_)
    return int(counts[kept].sum())


def _rank_key(result: PrunedPassage) -> tuple[bool, float, int]:
    value = result.relevance_score if result.relevance_logit is None else result.relevance_logit
    return (value is None, 0.0 if value is None else -value, result.index)
