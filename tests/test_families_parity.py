"""Every family answers as its original: same scores, same sentences, whatever the batch."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
from families_oracle import Raw, kept, run
from families_originals import KINDS, write
from one_thread import one_thread  # noqa: F401 - a fixture
from tokenizers import Tokenizer

from secateur.model.pruner import Pruner
from secateur.types import KeepReason, Passage, PrunedPassage, PruneOptions, TextSpan

QUERY = "What is the  Code?"

# Sentences and the gaps before them.
TEXTS: dict[str, tuple[tuple[str, str], ...]] = {
    "short": (("", "The red valve opens."), (" ", "Lunch was late.")),
    "one word": (("", "Valve"),),
    "outer space": (("  \n", "The pump is blue."), ("\n\n", "Who approved it?"), ("", "")),
    "no gap": (("", "ポンプは赤い。"), ("", "弁は青い。"), ("", "弁は赤い。")),
    "emoji": (("", "👍🏽 ok."), (" ", "🙂"), ("  ", "The 👍 valve is red!")),
    "combining": (("", "Cafe\u0301 open."), (" ", "Caf\u00e9 closes."), (" ", "e\u0301\u0301 is?")),
    "mixed": (
        ("", "A.B. code 7781."),
        ("\t", "弁はv1.2です。"),
        ("", "The quiet hall 👩‍🔬 closes."),
    ),
    "long": tuple((" " if i else "", f"The red valve {i} opens today.") for i in range(30)),
    "long mixed": tuple(
        (" " if i else "", s)
        for i, s in enumerate(("ポンプは赤い。", "👍 the hall is quiet.", "Cafe\u0301 open.") * 8)
    ),
}
TITLES = ("", "The Manual")


@dataclass(frozen=True)
class Case:
    text: str
    spans: tuple[tuple[int, int], ...]
    title: str

    @property
    def passage(self) -> Passage:
        sentences = tuple(TextSpan(start, end) for start, end in self.spans)
        return Passage(self.text, title=self.title, sentences=sentences)


def case(name: str, title: str) -> Case:
    text, spans = "", []
    for gap, sentence in TEXTS[name]:
        text += gap
        if sentence:
            spans.append((len(text), len(text) + len(sentence)))
        text += sentence
    return Case(text, tuple(spans), title)


@dataclass(frozen=True)
class Loaded:
    """A checkpoint in our engine, and what its original says of every text (computed once)."""

    family: str
    pruner: Pruner
    raw: dict[tuple[str, str], Raw]

    def threshold(self, wanted: float | None) -> float | None:
        """A plain reranker takes nothing but 0."""
        return wanted if self.pruner.info.can_prune else 0.0

    def median(self) -> float:
        """A threshold that keeps about half of all sentences, and lies between two of them."""
        means = {p for raw in self.raw.values() for p in raw.means if p is not None}
        ordered = sorted(means) or [0.0]
        middle = len(ordered) // 2
        return sum(ordered[max(middle - 1, 0) : middle + 1]) / min(2, len(ordered))


@pytest.fixture(scope="module", params=KINDS)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    kind = request.param
    folder: Path = tmp_path_factory.mktemp(kind)
    original = write(kind, folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    family = KINDS[kind].family
    pruner = Pruner.load(folder)
    assert pruner.info.family == family
    raw = {}
    for name in TEXTS:
        for title in TITLES:
            given = case(name, title)
            raw[name, title] = run(
                family, original, tokenizer, QUERY, given.text, given.spans, title
            )
    return Loaded(family, pruner, raw)


def assert_same(found: PrunedPassage, raw: Raw, kept_sentences: list[bool], given: Case) -> None:
    assert found.error is None
    assert found.relevance_score == pytest.approx(raw.score, abs=1e-5)
    if raw.logits:
        assert found.relevance_logit == pytest.approx(max(raw.logits), abs=1e-4)
    else:
        assert found.relevance_logit is None
    assert found.window_count == raw.windows
    spans = [(s.start_offset, s.end_offset) for s in found.sentences]
    assert spans == list(given.spans)
    for sentence, p in zip(found.sentences, raw.means, strict=True):
        assert sentence.probability == (None if p is None else pytest.approx(p, abs=1e-5))
        assert (sentence.reason is KeepReason.UNSCORED) == (p is None)
    assert [sentence.kept for sentence in found.sentences] == kept_sentences


@pytest.mark.parametrize("title", TITLES)
@pytest.mark.parametrize("at_median", [False, True], ids=["default", "median"])
def test_answers_as_the_original(loaded: Loaded, at_median: bool, title: str) -> None:
    """All passages in one call, batched by length; the oracle runs them one by one."""
    threshold = loaded.median() if at_median else None
    options = PruneOptions(threshold=loaded.threshold(threshold))
    cases = {name: case(name, title) for name in TEXTS}
    passages = [given.passage for given in cases.values()]
    ranked = loaded.pruner.rerank_and_prune(QUERY, passages, options)
    scores = [result.relevance_score or 0.0 for result in ranked.results]
    assert scores == sorted(scores, reverse=True)
    decisions = []
    for result in sorted(ranked.results, key=lambda result: result.index):
        name = list(cases)[result.index]
        raw = loaded.raw[name, title]
        expected = kept(loaded.family, raw, threshold)
        assert_same(result, raw, expected, cases[name])
        decisions += expected
    assert any(raw.windows > 1 for raw in loaded.raw.values())
    if at_median and loaded.pruner.info.can_prune:
        assert {True, False} == set(decisions)


def test_alone_as_in_a_batch(loaded: Loaded) -> None:
    """F12: neighbours change nothing, not even padding that is all a local attention sees."""
    options = PruneOptions(threshold=loaded.threshold(None))
    for name in TEXTS:
        passage = case(name, "").passage
        (alone,) = loaded.pruner.rerank_and_prune(QUERY, [passage], options).results
        assert alone.relevance_score == pytest.approx(loaded.raw[name, ""].score, abs=1e-5)
