"""The checkpoint families, one record each. docs/models.md tells where the facts come from."""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from secateur.model.adapter import unchanged
from secateur.types import KeepRule, ScoreSource

TOKEN_RULES = (KeepRule.MEAN_PROBABILITY, KeepRule.TOKEN_VOTE, KeepRule.MAJORITY)

_ALL = ("deberta-v2", "xlm-roberta", "roberta", "modernbert", "bert", "electra")
_TOKEN_CLASSIFIER = "token_classifier."  # noqa: S105 - keys of a token head
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """How checkpoints of one origin are told, read and served. Data and small functions only.

    layout: the keys, for people. encoders: the model types that occur.
    claims: starts of ``model_type`` or ``architectures`` (letters and digits, lower case) that
        name the family; without such a name the keys decide.
    by_keys: whether the keys alone can tell it.
    token_keys: prefix of the token head's keys; empty without one.
    classifier_labels: rows of ``classifier``, where only they tell families apart.
    wrapper: prefix of the stock keys; keys without it count as if they had it.
    has_score: a head scores the passage. pooled_score: XLM-R's score is a linear layer on the
        pooled output. scores_sentences: the token head scores mean vectors of sentences.
    single_separator: ``[CLS] query [SEP] passage [SEP]`` whatever the tokenizer's own pair is.
    max_window: upper bound of the window in tokens; unset is what the encoder can take.
    default_threshold: unset where nothing is pruned.
    The rest as in :class:`secateur.model.adapter.Adapter`.
    """

    name: str
    layout: str
    encoders: tuple[str, ...]
    claims: tuple[str, ...] = ()
    by_keys: bool = True
    token_keys: str = ""
    classifier_labels: int | None = None
    wrapper: str = ""
    has_score: bool = True
    pooled_score: bool = False
    scores_sentences: bool = False
    single_separator: bool = False
    max_window: int | None = None
    keep_rules: tuple[KeepRule, ...] = TOKEN_RULES
    default_keep_rule: KeepRule | None = None
    default_threshold: float | None = None
    normalize_query: Callable[[str], str] = unchanged
    by_sentence: bool = False
    mean_of_pieces: bool = False

    @property
    def can_prune(self) -> bool:
        """Whether sentences get a probability."""
        return bool(self.keep_rules)

    @property
    def score_source(self) -> ScoreSource:
        """Where relevance scores come from."""
        return ScoreSource.PASSAGE_HEAD if self.has_score else ScoreSource.BEST_SENTENCE


def provence_query(query: str) -> str:
    """Lower case, without ASCII punctuation, white space squeezed to single spaces."""
    return " ".join(query.lower().translate(_NO_PUNCTUATION).split())


_PROVENCE_LAYOUT = (
    "deberta.*, pooler.dense.*, classifier.* (1 label), token_classifier.* (2 labels)"
)

_TABLE = (
    # Ours: Provence's keys, but everything as it is sent.
    Family(
        name="secateur",
        layout=f'{_PROVENCE_LAYOUT}, and config.json says "secateur": {{"family": "secateur"}}',
        encoders=("deberta-v2",),
        claims=("debertav2forrerankandprune",),  # what training saves
        by_keys=False,
        token_keys=_TOKEN_CLASSIFIER,
        single_separator=True,
        default_keep_rule=KeepRule.TOKEN_VOTE,
        default_threshold=0.1,
    ),
    Family(
        name="provence",
        layout=_PROVENCE_LAYOUT,
        encoders=("deberta-v2",),
        claims=("provence",),
        token_keys=_TOKEN_CLASSIFIER,
        single_separator=True,
        max_window=512,
        default_keep_rule=KeepRule.TOKEN_VOTE,
        default_threshold=0.1,
        normalize_query=provence_query,
        by_sentence=True,
    ),
    Family(
        name="xprovence",
        layout="roberta.* with roberta.pooler.dense.*, classifier.* (1 label), "
        "token_classifier.* (2 labels)",
        encoders=("xlm-roberta",),
        claims=("xprovence",),
        token_keys=_TOKEN_CLASSIFIER,
        pooled_score=True,
        single_separator=True,
        default_keep_rule=KeepRule.TOKEN_VOTE,
        default_threshold=0.3,
    ),
    Family(
        name="open_provence",
        layout="ranking_model.* (a stock sequence classifier, 1 label), "
        "pruning_head.classifier.* (2 labels)",
        encoders=tuple(kind for kind in _ALL if kind != "xlm-roberta"),
        claims=("openprovence",),
        token_keys="pruning_head.classifier.",  # noqa: S106
        wrapper="ranking_model.",
        default_keep_rule=KeepRule.MEAN_PROBABILITY,
        default_threshold=0.1,
        mean_of_pieces=True,
    ),
    # Open Provence's code on bge-reranker-v2-m3, with a threshold of its own.
    Family(
        name="zilliz_highlight",
        layout="the keys of open_provence",
        encoders=("xlm-roberta",),
        claims=("openprovence",),
        token_keys="pruning_head.classifier.",  # noqa: S106
        wrapper="ranking_model.",
        default_keep_rule=KeepRule.MEAN_PROBABILITY,
        default_threshold=0.5,
        mean_of_pieces=True,
    ),
    Family(
        name="opensearch_highlighter",
        layout="bert.*, classifier.* (2 labels), no stock architecture in config.json",
        encoders=("bert",),
        claims=("berttaggerforsentenceextraction",),
        token_keys="classifier.",  # noqa: S106
        classifier_labels=2,
        has_score=False,
        scores_sentences=True,
        max_window=512,
        keep_rules=(KeepRule.SENTENCE_HEAD,),
        default_keep_rule=KeepRule.SENTENCE_HEAD,
        default_threshold=0.5,
    ),
    Family(
        name="plain_reranker",
        layout="a stock sequence classifier, 1 label",
        encoders=_ALL,
        classifier_labels=1,
        keep_rules=(),
    ),
)

FAMILIES: Mapping[str, Family] = MappingProxyType({family.name: family for family in _TABLE})
"""By name, in the order in which keys are tried."""
