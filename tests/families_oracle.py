"""What each family's own code answers, the straightforward way: one input at a time, no batches.

Written from the facts of docs/models.md on plain transformers and tokenizers.
"""

from __future__ import annotations

import math
import string
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from families_originals import WINDOW, OpenSearchOriginal
from tokenizers import Tokenizer
from torch import nn

DEFAULTS = {
    "provence": ("vote", 0.1),
    "xprovence": ("vote", 0.3),
    "open_provence": ("mean", 0.1),
    "zilliz_highlight": ("mean", 0.5),
    "opensearch_highlighter": ("sentence", 0.5),
    "plain_reranker": ("none", 0.0),
}

Token = tuple[int, int | None]
"""An id and the sentence that it counts for."""


@dataclass(frozen=True)
class Raw:
    """What the model says of one passage.

    logits: of each window; empty without a passage head. by_sentence: the probabilities of each
    sentence's tokens, or its own one; empty where there are none.
    """

    logits: tuple[float, ...]
    by_sentence: tuple[tuple[float, ...], ...]
    windows: int

    @property
    def means(self) -> list[float | None]:
        """The probability of each sentence; unset where it has none."""
        return [sum(p) / len(p) if p else None for p in self.by_sentence]

    @property
    def score(self) -> float:
        """Sigmoid of the largest logit, or the best sentence."""
        if not self.logits:
            return max(mean for mean in self.means if mean is not None)
        return 1 / (1 + math.exp(-max(self.logits)))


@torch.inference_mode()
def run(
    family: str,
    model: nn.Module,
    tokenizer: Tokenizer,
    query: str,
    text: str,
    spans: Sequence[tuple[int, int]],
    title: str = "",
) -> Raw:
    """One passage whose sentences all fit into a window."""
    head, middle, tail = special_tokens(family, tokenizer)
    query_ids = encode(tokenizer, seen_query(family, query)).ids
    title_tokens, tokens = passage_tokens(family, tokenizer, text, spans, title)
    room = WINDOW - len(head + middle + tail) - len(query_ids) - len(title_tokens)
    logits: list[float] = []
    by_sentence: list[list[float]] = [[] for _ in spans]
    windows = packed(tokens, room)
    for window in windows:
        first = [*head, *query_ids, *middle]
        before = first + [token for token, _ in title_tokens]
        ids = torch.tensor([[*before, *(token for token, _ in window), *tail]])
        types = torch.tensor([[0] * len(first) + [1] * (ids.shape[1] - len(first))])
        places: dict[int, list[int]] = {}
        for position, (_, sentence) in enumerate(window, len(before)):
            if sentence is not None:
                places.setdefault(sentence, []).append(position)
        if isinstance(model, OpenSearchOriginal):
            for sentence, positions in places.items():
                by_sentence[sentence].append(model.sentence_probability(ids, types, positions))
            continue
        score, token_logits = model(ids, types)
        logits.append(float(score[0]))
        if token_logits is None:
            continue
        keep = torch.softmax(token_logits[0], dim=-1)[:, 1].tolist()
        for sentence, positions in places.items():
            by_sentence[sentence] += [keep[position] for position in positions]
    return Raw(tuple(logits), tuple(map(tuple, by_sentence)), len(windows))


def kept(family: str, raw: Raw, threshold: float | None = None) -> list[bool]:
    """Each family's rule; a sentence without tokens is kept."""
    rule, default = DEFAULTS[family]
    t = default if threshold is None else threshold
    if rule == "none":
        return [True] * len(raw.by_sentence)
    if rule == "vote":
        shares = [sum(p > t for p in ps) / len(ps) if ps else math.inf for ps in raw.by_sentence]
        return [share > t for share in shares]
    means = [math.inf if mean is None else mean for mean in raw.means]
    if rule == "mean":
        return [mean > t for mean in means]
    chosen = [mean >= t for mean in means]
    if not any(chosen) and max(means) >= 0.05:
        chosen[means.index(max(means))] = True
    return chosen


def seen_query(family: str, query: str) -> str:
    """Provence lower-cases, strips ASCII punctuation and squeezes white space."""
    if family != "provence":
        return query
    bare = "".join(character for character in query.lower() if character not in string.punctuation)
    return " ".join(bare.split())


def special_tokens(family: str, tokenizer: Tokenizer) -> tuple[list[int], list[int], list[int]]:
    """``[CLS] q [SEP] p [SEP]``; XLM-R's stock pair has two separators, XProvence's one."""
    bert_like = tokenizer.token_to_id("[CLS]") is not None
    names = ("[CLS]", "[SEP]") if bert_like else ("<s>", "</s>")
    cls_id, sep_id = (tokenizer.token_to_id(name) or 0 for name in names)
    middle = [sep_id] if bert_like or family == "xprovence" else [sep_id, sep_id]
    return [cls_id], middle, [sep_id]


def passage_tokens(
    family: str, tokenizer: Tokenizer, text: str, spans: Sequence[tuple[int, int]], title: str
) -> tuple[list[Token], list[Token]]:
    """Tokens of the title and of the text, each with its sentence."""
    if family == "provence":  # s0, " " + s1, ...; a title is the first of them
        units = [(title, -1)] if title else []
        units += [(text[start:end], index) for index, (start, end) in enumerate(spans)]
        tokens: list[Token] = []
        for number, (unit, index) in enumerate(units):
            spaced = unit if number == 0 else f" {unit}"
            tokens += [(token, index) for token in encode(tokenizer, spaced).ids]
        return [t for t in tokens if t[1] == -1], [t for t in tokens if t[1] != -1]
    shift = len(title) + 1 if title else 0
    whole = f"{title} {text}" if title else text
    encoding = encode(tokenizer, whole)
    title_tokens: list[Token] = []
    tokens = []
    for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
        if title and start < len(title):
            title_tokens.append((token, None))
            continue
        visible = [i for i in range(start, end) if not whole[i].isspace()]
        owner = [
            index for index, (a, b) in enumerate(spans) if visible and a <= visible[0] - shift < b
        ]
        tokens.append((token, owner[0] if owner else None))
    return title_tokens, tokens


def packed(tokens: list[Token], room: int) -> list[list[Token]]:
    """Whole sentences, greedily; a token of white space goes with the sentence after it."""
    groups: list[list[Token]] = []
    waiting: list[Token] = []
    last: int | None = None
    for token in tokens:
        if token[1] is None:
            waiting.append(token)
        elif groups and token[1] == last:
            groups[-1] += [*waiting, token]
            waiting = []
        else:
            groups.append([*waiting, token])
            waiting, last = [], token[1]
    if groups:
        groups[-1] += waiting
    windows: list[list[Token]] = []
    for group in groups:
        assert len(group) <= room, "this oracle cuts no sentences"
        if windows and len(windows[-1]) + len(group) <= room:
            windows[-1] += group
        else:
            windows.append(list(group))
    return windows


def encode(tokenizer: Tokenizer, text: str) -> Any:
    """Without special tokens."""
    return tokenizer.encode(text, add_special_tokens=False)
