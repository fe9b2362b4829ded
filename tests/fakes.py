"""Deterministic stand-ins for the model: a stub tokenizer, fake scorers, a simple splitter.

``make_engine()`` gives a whole engine without torch. In it a passage token has keep
probability 0.95 when the query has the same word (case aside), else 0.02, and a window's
logit is 8 x (share of the query's words that it holds) - 4: from -4 (none) to 4 (all).
"""

from __future__ import annotations

import re
import threading
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from secateur.model.engine import EncodedWindow, Engine, WindowOutput
from secateur.model.splitter import Split
from secateur.model.tokenization import TokenizedText
from secateur.types import KeepRule, ModelInfo, ScoreSource

HIT = 0.95
MISS = 0.02


class StubTokenizer:
    """One token a word or punctuation mark; ids are given out in the order of first sight.

    style "word": offsets cover the word. style "leading_space": they begin at the white space
    before it, as SentencePiece's and byte-level tokenizers' do. style "marker": before each
    word comes an empty or overlapping marker token, and each character outside the Basic
    Multilingual Plane is two tokens with the same offsets, as byte fall-back gives.
    Words spelt in ``unknown`` get the unknown id; format characters (zero-width space, ...)
    give no token at all.
    """

    pad_id, unk_id, cls_id, sep_id = 0, 1, 2, 3

    def __init__(self, style: str = "word", unknown: Sequence[str] = ()) -> None:
        self.style = style
        self.words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
        self._ids: dict[str, int] = dict.fromkeys(unknown, self.unk_id)
        self._lock = threading.Lock()

    def token_id(self, word: str) -> int:
        """The id of a word, case aside."""
        with self._lock:
            word = word.lower()
            if word not in self._ids:
                self._ids[word] = len(self.words)
                self.words.append(word)
            return self._ids[word]

    def encode(self, text: str) -> TokenizedText:
        """Tokenise a text whole."""
        tokens: list[tuple[int, int, int]] = []
        for match in re.finditer(r"(\s*)([^\W_]+|\S)", text):
            start, end = match.span(2)
            if unicodedata.category(match.group(2)[0]) == "Cf":
                continue
            if self.style == "leading_space":
                start = match.start()
            token = (self.token_id(match.group(2)), start, end)
            if self.style == "marker":
                marker_start = max(start - 1, match.start())
                tokens.append((self.token_id("\u2581"), marker_start, start))
                if ord(match.group(2)[0]) > 0xFFFF:
                    tokens.append(token)
            tokens.append(token)
        columns = np.array(tokens, dtype=np.int64).reshape(-1, 3)
        return TokenizedText(ids=columns[:, 0], starts=columns[:, 1], ends=columns[:, 2])


@dataclass
class FakeScorer:
    """Scores by words shared with the query; see the module's docstring.

    batches: the token counts of the windows of every call, for tests of batching.
    gate: when given, each call waits until it is set (a test that sets it ends the wait).
    fail: when given, called with the windows before scoring; may raise.
    started: set when a call begins.
    """

    sep_id: int = StubTokenizer.sep_id
    batches: list[list[int]] = field(default_factory=list)
    gate: threading.Event | None = None
    fail: Callable[[Sequence[EncodedWindow]], None] | None = None
    started: threading.Event = field(default_factory=threading.Event)

    def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
        """Score the windows in order; no window's result depends on another's."""
        self.batches.append([window.token_count for window in windows])
        self.started.set()
        if self.gate is not None and not self.gate.wait(timeout=60):
            raise AssertionError("the test never opened the gate")
        if self.fail is not None:
            self.fail(windows)
        return [self._score(window) for window in windows]

    def _score(self, window: EncodedWindow) -> WindowOutput:
        ids = window.input_ids
        query = ids[1 : int(np.flatnonzero(ids == self.sep_id)[0])]
        passage = ids[window.passage_tokens]
        share = float(np.isin(np.unique(query), passage).mean())
        keep = np.where(np.isin(passage, query), HIT, MISS).astype(np.float32)
        return WindowOutput(relevance_logit=8 * share - 4, keep_probabilities=keep)


@dataclass
class WordScorer:
    """Keep probability by word, from a table, and one logit for each window in turn.

    logits: used in turn for successive windows, the last one again and again.
    """

    tokenizer: StubTokenizer
    probabilities: dict[str, float]
    default: float = 0.0
    logits: Sequence[float] = (0.0,)
    seen: int = 0

    def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
        """Look up each passage token's probability."""
        outputs = []
        for window in windows:
            words = [self.tokenizer.words[i] for i in window.input_ids[window.passage_tokens]]
            keep = [self.probabilities.get(word, self.default) for word in words]
            logit = self.logits[min(self.seen, len(self.logits) - 1)]
            self.seen += 1
            outputs.append(WindowOutput(logit, np.array(keep, dtype=np.float32)))
        return outputs


class StubSplitter:
    """Sentences end at ``.``, ``!`` or ``?`` before white space, and at every ``。``."""

    version = "stub-1"
    languages = ("en", "de", "ja", "zh")
    _sentence = re.compile(r"\S(?:.*?(?:[.!?](?=\s|$)|。)|.*\S|)", re.DOTALL)

    def split(self, text: str, language: str = "") -> Split:
        """Split a text; ValueError on an unknown language."""
        if language and language not in self.languages:
            raise ValueError(f"no rules for language {language!r}")
        return Split(spans=tuple(m.span() for m in self._sentence.finditer(text)), coarse=False)


def make_info(**changes: Any) -> ModelInfo:
    """Capabilities of a small two-head model."""
    info = ModelInfo(
        id="fake",
        revision="1",
        family="fake",
        dtype="float32",
        device="cpu",
        can_rerank=True,
        can_prune=True,
        score_source=ScoreSource.PASSAGE_HEAD,
        languages=("en",),
        window_tokens=64,
        max_query_tokens=30,
        default_threshold=0.1,
        default_keep_rule=KeepRule.MEAN_PROBABILITY,
        keep_rules=(KeepRule.MEAN_PROBABILITY, KeepRule.TOKEN_VOTE, KeepRule.MAJORITY),
    )
    return replace(info, **changes)


def make_engine(
    *,
    tokenizer: StubTokenizer | None = None,
    scorer: Any = None,
    splitter: Any = None,
    **info_changes: Any,
) -> Engine:
    """A whole engine on fakes; give a part to replace it, or fields of its ModelInfo."""
    return Engine(
        tokenizer or StubTokenizer(),
        scorer or FakeScorer(),
        splitter or StubSplitter(),
        make_info(**info_changes),
    )
