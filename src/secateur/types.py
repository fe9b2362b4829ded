"""The words of Secateur: requests, results and their enums as frozen value types.

This leaf module uses the standard library only. Field names equal those of
``proto/secateur/v1``. Offsets are half-open; probabilities and scores lie in [0, 1];
``None`` means "there is none" (unset, unscored), never zero.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum


class KeepRule(StrEnum):
    """How token probabilities p become a sentence's keep or drop, at threshold t."""

    MEAN_PROBABILITY = "mean_probability"
    """Keep when the mean p over the sentence's tokens is > t."""
    TOKEN_VOTE = "token_vote"
    """Keep when the share of tokens with p > t is > t."""
    MAJORITY = "majority"
    """Keep when the share of tokens with p > t is > 0.5."""
    SENTENCE_HEAD = "sentence_head"
    """Keep when the sentence's own p is >= t (models that score whole sentences)."""


class ResultOrder(StrEnum):
    """Order of ``RankedPassages.results``."""

    SCORE = "score"
    INPUT = "input"


class OffsetUnit(StrEnum):
    """Unit of every offset in a request and its answer."""

    CODE_POINT = "code_point"
    UTF8_BYTE = "utf8_byte"
    UTF16_CODE_UNIT = "utf16_code_unit"


class KeepReason(StrEnum):
    """The first rule that decided a sentence, in the order in which rules apply."""

    ABOVE_THRESHOLD = "above_threshold"
    BELOW_THRESHOLD = "below_threshold"
    TITLE = "title"
    MIN_SENTENCES = "min_sentences"
    NEIGHBOR = "neighbor"
    PROTECTED = "protected"
    UNSCORED = "unscored"


class ScoreSource(StrEnum):
    """Where ``relevance_score`` comes from."""

    PASSAGE_HEAD = "passage_head"
    BEST_SENTENCE = "best_sentence"


class WarningCode(StrEnum):
    """Conditions that a caller should know of although the call succeeded."""

    UNSUPPORTED_SCRIPT = "unsupported_script"
    """More than 20 % of a passage's tokens are unknown to the vocabulary."""


class FragmentFormat(StrEnum):
    """Form of the tagged fragments of a highlighted passage."""

    NONE = "none"
    HTML_ESCAPED = "html_escaped"
    RAW = "raw"


@dataclass(frozen=True, slots=True)
class TextSpan:
    """A half-open range of a text, in the request's offset unit."""

    start_offset: int
    end_offset: int


@dataclass(frozen=True, slots=True)
class Passage:
    """One retrieved text. ``sentences`` overrides the splitter when it is not empty."""

    text: str
    id: str = ""
    title: str = ""
    sentences: tuple[TextSpan, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PruneOptions:
    """What a caller may tune. Unset (``None``) takes the model's default.

    threshold: t of the keep rule, in [0, 1].
    top_k: how many results to return, >= 0; 0 returns all.
    min_relevance_score: drops passages whose score is lower, in [0, 1].
    always_select_title: keep the first sentence when another one is kept.
    min_sentences: keep at least this many scored sentences a passage, >= 0.
    neighbor_sentences: also keep this many sentences on each side of a kept one, >= 0.
    max_context_tokens: total token budget of all kept text, >= 0; 0 is no budget.
    protected_patterns: RE2 patterns; a sentence with a match is always kept.
    language: ISO 639-1 code that chooses the splitter; empty chooses by script.
    truncate_query: cut a query over the limit (and say so) instead of refusing it.
    """

    threshold: float | None = None
    keep_rule: KeepRule | None = None
    top_k: int = 0
    min_relevance_score: float | None = None
    order: ResultOrder = ResultOrder.SCORE
    always_select_title: bool = False
    min_sentences: int = 0
    neighbor_sentences: int = 0
    max_context_tokens: int = 0
    protected_patterns: tuple[str, ...] = ()
    offset_unit: OffsetUnit = OffsetUnit.CODE_POINT
    language: str = ""
    truncate_query: bool = False
    include_tokens: bool = False
    include_sentence_text: bool = False


@dataclass(frozen=True, slots=True)
class TokenScore:
    """One passage token: its characters, probability p, and whether p > t."""

    start_offset: int
    end_offset: int
    probability: float
    relevant: bool


@dataclass(frozen=True, slots=True)
class Sentence:
    """One sentence. ``probability`` and ``vote_share`` are ``None`` when unscored.

    probability: mean p over the sentence's tokens. vote_share: share of tokens with p > t.
    text: only when ``include_sentence_text`` was asked for, else empty.
    """

    start_offset: int
    end_offset: int
    probability: float | None
    vote_share: float | None
    kept: bool
    reason: KeepReason
    text: str = ""


@dataclass(frozen=True, slots=True)
class PassageError:
    """Why one passage failed alone: a gRPC status code name and a sentence."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class PrunedPassage:
    """The result for the passage at ``index`` of the request.

    compression_rate: 1 - code points of pruned_text / of text, in [0, 1].
    all_pruned: the text is not blank and no sentence was kept.
    """

    index: int
    id: str
    relevance_score: float | None
    relevance_logit: float | None
    pruned_text: str
    sentences: tuple[Sentence, ...]
    kept_spans: tuple[TextSpan, ...]
    compression_rate: float
    all_pruned: bool
    unscored_sentence_count: int = 0
    window_count: int = 0
    coarse_sentences: bool = False
    tokens: tuple[TokenScore, ...] = ()
    error: PassageError | None = None


@dataclass(frozen=True, slots=True)
class ModelRef:
    """Which weights answered."""

    id: str
    revision: str
    dtype: str


@dataclass(frozen=True, slots=True)
class Usage:
    """Token counts. input_tokens: all model input, special tokens and cached passages too.

    kept_tokens: passage tokens inside kept sentences, over all passages.
    cached_passage_count: passages whose scores all came from the server's cache.
    """

    query_tokens: int = 0
    input_tokens: int = 0
    kept_tokens: int = 0
    cached_passage_count: int = 0


@dataclass(frozen=True, slots=True)
class Timing:
    """Wall-clock milliseconds by stage."""

    queue_ms: float = 0.0
    tokenize_ms: float = 0.0
    inference_ms: float = 0.0
    total_ms: float = 0.0


@dataclass(frozen=True, slots=True)
class RankedPassages:
    """The answer to one rerank-and-prune request.

    applied_keep_rule: ``None`` when the model scores whole passages only.
    """

    results: tuple[PrunedPassage, ...]
    applied_threshold: float
    applied_keep_rule: KeepRule | None
    score_source: ScoreSource
    omitted_passage_count: int
    query_truncated: bool
    warnings: tuple[WarningCode, ...]
    model: ModelRef
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True)
class RankedPassage:
    """One line of a stream's ranking; ``index`` counts over the whole stream."""

    index: int
    id: str
    relevance_score: float | None
    relevance_logit: float | None


@dataclass(frozen=True, slots=True)
class StreamSummary:
    """The end of a stream: the ranking, and what holds for all its passages."""

    ranking: tuple[RankedPassage, ...]
    applied_threshold: float
    applied_keep_rule: KeepRule | None
    score_source: ScoreSource
    omitted_passage_count: int
    query_truncated: bool
    warnings: tuple[WarningCode, ...]
    model: ModelRef
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True)
class HighlightSpan:
    """A maximal run of kept sentences; probability: the highest of its scored sentences."""

    start_offset: int
    end_offset: int
    probability: float | None


@dataclass(frozen=True, slots=True)
class HighlightedPassage:
    """Highlighted spans of the passage at ``index``, and fragments when asked for."""

    index: int
    id: str
    relevance_score: float | None
    relevance_logit: float | None
    spans: tuple[HighlightSpan, ...]
    fragments: tuple[str, ...] = ()
    error: PassageError | None = None


@dataclass(frozen=True, slots=True)
class HighlightedPassages:
    """The answer to one highlight request."""

    results: tuple[HighlightedPassage, ...]
    applied_threshold: float
    applied_keep_rule: KeepRule | None
    score_source: ScoreSource
    omitted_passage_count: int
    query_truncated: bool
    warnings: tuple[WarningCode, ...]
    model: ModelRef
    usage: Usage
    timing: Timing


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Upper bounds of a request, checked before the model runs; each is the largest allowed.

    max_request_tokens: model input of one request in all, as ``Usage.input_tokens`` counts it:
        every window with its query, title and special tokens. It bounds what a request can cost
        (a million characters may be ten tokens or a million); the default is about half a
        minute of the embedded model on two CPU cores.
    """

    max_passages: int = 1_000
    max_passage_characters: int = 500_000
    max_request_characters: int = 2_000_000
    max_request_tokens: int = 100_000
    max_query_characters: int = 20_000
    max_title_characters: int = 2_000
    max_id_characters: int = 1_024
    max_protected_patterns: int = 64
    max_protected_pattern_characters: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What a loaded model is and can do.

    window_tokens: tokens of one model input, special tokens included.
    max_query_tokens: a longer query is refused or, if asked, cut.
    languages: ISO 639-1 codes the model was trained for; empty when unknown.
    default_threshold, default_keep_rule: ``None``, and ``keep_rules`` empty, for a model that
        scores whole passages only.
    """

    id: str
    revision: str
    family: str
    dtype: str
    device: str
    can_rerank: bool
    can_prune: bool
    score_source: ScoreSource
    languages: tuple[str, ...]
    window_tokens: int
    max_query_tokens: int
    default_threshold: float | None
    default_keep_rule: KeepRule | None
    keep_rules: tuple[KeepRule, ...]
    limits: Limits = field(default_factory=Limits)
