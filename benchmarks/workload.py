"""Requests with known answers, and whether an answer is the known one."""

from __future__ import annotations

import random
from dataclasses import dataclass

from secateur import v1
from secateur.bench.workload import demo_sentences

TOLERANCE = 1e-4
"""How far a score may be from the same passage's score in other company (float32)."""

_QUERIES = (
    "Why do leaves turn yellow and red in autumn?",
    "How does photosynthesis make sugar?",
    "When are fruit trees pruned?",
)


@dataclass(frozen=True)
class Known:
    """A request, and its answer when nothing else was asked."""

    request: v1.RerankAndPruneRequest
    answer: v1.RerankAndPruneResponse


def good_requests(count: int, seed: int = 0) -> list[v1.RerankAndPruneRequest]:
    """Requests of 1 to 8 passages of 1 to 30 sentences; every passage's id tells its index."""
    random_ = random.Random(seed)
    sentences = demo_sentences()
    requests = []
    for _ in range(count):
        request = v1.RerankAndPruneRequest(query=random_.choice(_QUERIES))
        for index in range(random_.randint(1, 8)):
            chosen = random_.choices(sentences, k=random_.choice((1, 3, 5, 8, 30)))
            request.passages.add(id=f"p{index}", text=" ".join(chosen))
        requests.append(request)
    return requests


def bad_requests() -> list[v1.RerankAndPruneRequest]:
    """Requests that must be refused with INVALID_ARGUMENT: blank, odd, and hostile in length."""
    query = _QUERIES[0]
    blank = v1.RerankAndPruneRequest(query="\u3000\u200b", passages=[v1.Passage(text="A.")])
    odd = v1.RerankAndPruneRequest(query=query, options=v1.PruneOptions(threshold=7))
    long = v1.RerankAndPruneRequest(query=query, passages=[v1.Passage(text="n. " * 200_000)])
    many = v1.RerankAndPruneRequest(query=query, passages=[v1.Passage(text="a")] * 1_001)
    tokens = v1.RerankAndPruneRequest(query=query, passages=[v1.Passage(text="n. " * 120_000)])
    return [blank, odd, long, many, tokens]


def huge_request(tokens: int) -> v1.RerankAndPruneRequest:
    """One passage of about so many tokens."""
    text = "The red maple keeps its leaves. " * (tokens // 7)
    return v1.RerankAndPruneRequest(query=_QUERIES[0], passages=[v1.Passage(text=text, id="p0")])


def faults(known: Known, answer: v1.RerankAndPruneResponse) -> list[str]:
    """What is wrong with an answer; empty when it is the known one."""
    passages = known.request.passages
    found = []
    if sorted(result.index for result in answer.results) != list(range(len(passages))):
        return [f"answered passages {[result.index for result in answer.results]}"]
    expected = {result.index: result for result in known.answer.results}
    logits = [result.relevance_logit for result in answer.results]
    if logits != sorted(logits, reverse=True):
        found.append(f"wrong order: {logits}")
    for result in answer.results:
        same = expected[result.index]
        where = f"passage {result.index}"
        if result.id != passages[result.index].id:
            found.append(f"{where}: id {result.id!r}")
        if result.HasField("error"):
            found.append(f"{where}: {result.error.message}")
            continue
        if abs(result.relevance_logit - same.relevance_logit) > TOLERANCE:
            found.append(f"{where}: logit {result.relevance_logit}, not {same.relevance_logit}")
        pairs = list(zip(result.sentences, same.sentences, strict=False))
        if len(result.sentences) != len(same.sentences) or any(
            (ours.start_offset, ours.end_offset) != (theirs.start_offset, theirs.end_offset)
            or abs(ours.probability - theirs.probability) > TOLERANCE
            for ours, theirs in pairs
        ):
            found.append(f"{where}: other sentences or probabilities")
    return found
