"""The cache by itself: what is in a key, what is kept, and how much memory it takes."""

from __future__ import annotations

import math
import threading
import tracemalloc
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from secateur.model.prepared import EncodedWindow, WindowOutput
from secateur.server.cache import ENTRY_BYTES, WindowCache, entry_bytes
from secateur.types import ModelRef

CACHE = 1 << 20
MODEL = ModelRef("model", "1", "float32")


def window(*ids: int, sentences: Sequence[int] | None = None) -> EncodedWindow:
    """A window of these ids, all of them passage tokens."""
    given_sentences = None if sentences is None else np.array(sentences, dtype=np.int64)
    types = np.zeros(len(ids), dtype=np.int64)
    return EncodedWindow(np.array(ids, dtype=np.int64), types, slice(0, len(ids)), given_sentences)


def output(logit: float | None, *probabilities: float) -> WindowOutput:
    return WindowOutput(logit, np.array(probabilities, dtype=np.float32))


def test_everything_that_the_model_is_given_is_in_the_key() -> None:
    names = [item.name for item in fields(EncodedWindow)]
    assert names == ["input_ids", "token_type_ids", "passage_tokens", "sentences"]
    cache = WindowCache(CACHE, MODEL)
    plain = window(1, 2, 3, sentences=[0, 0, 1])
    others = [
        window(1, 2, 4, sentences=[0, 0, 1]),
        replace(plain, token_type_ids=np.array([0, 0, 1])),
        replace(plain, passage_tokens=slice(1, 3)),
        window(1, 2, 3, sentences=[0, 1, 1]),
        replace(plain, sentences=None),
        replace(plain, sentences=np.zeros(0, dtype=np.int64)),
    ]
    assert len({cache.key(w) for w in [plain, *others]}) == 7
    assert cache.key(plain) == cache.key(window(1, 2, 3, sentences=[0, 0, 1]))
    narrow = replace(plain, input_ids=np.array([1, 2, 3], dtype=np.int32))
    assert cache.key(narrow) == cache.key(plain)


CUTS = st.tuples(st.integers(0, 5), st.integers(0, 5), st.booleans())


def cut(numbers: Sequence[int], cuts: tuple[int, int, bool]) -> EncodedWindow:
    """The same numbers in turn as ids, types and sentences; without sentences if none are left."""
    first, second = sorted(cuts[:2])
    ids, types, sentences = (
        np.array(part, dtype=np.int64)
        for part in (numbers[:first], numbers[first:second], numbers[second:])
    )
    absent = cuts[2] and not len(sentences)
    return EncodedWindow(ids, types, slice(0, 1), None if absent else sentences)


def content(w: EncodedWindow) -> object:
    return [None if a is None else a.tolist() for a in (w.input_ids, w.token_type_ids, w.sentences)]


@given(st.lists(st.integers(-1, 2), max_size=5), CUTS, CUTS)
def test_two_inputs_never_run_into_one_another(
    numbers: list[int], one: tuple[int, int, bool], other: tuple[int, int, bool]
) -> None:
    """Moving a number from the end of one field to the beginning of the next makes another key."""
    cache = WindowCache(CACHE, MODEL)
    first, second = cut(numbers, one), cut(numbers, other)
    assert (cache.key(first) == cache.key(second)) == (content(first) == content(second))


def test_two_models_share_nothing() -> None:
    models = [
        MODEL,
        replace(MODEL, id="other"),
        replace(MODEL, revision="2"),
        replace(MODEL, dtype="bfloat16"),
        ModelRef("model1", "", "float32"),
        ModelRef("", "model1", "float32"),
    ]
    assert len({WindowCache(CACHE, model).key(window(1)) for model in models}) == len(models)


@given(
    st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=60),
    st.integers(1, 6 * (ENTRY_BYTES + 40)),
)
def test_the_bound_holds_and_the_least_recently_used_go_first(
    steps: Sequence[tuple[bool, int]], most: int
) -> None:
    cache = WindowCache(most, MODEL)
    expected: OrderedDict[int, int] = OrderedDict()
    for scored, number in steps:
        seen = cache.look_up([window(number)])
        assert seen.cached == (number in expected)
        if seen.cached:
            assert seen.outputs[0].relevance_logit == number
            expected.move_to_end(number)
        if scored:
            given_output = output(float(number), *[0.5] * (10 * number))
            seen.learn(0, given_output)
            size = entry_bytes(given_output)
            if size <= most:
                expected[number] = size
                expected.move_to_end(number)
            while sum(expected.values()) > most:
                expected.popitem(last=False)
        assert cache.size == sum(expected.values()) <= most
        assert cache.entry_count == len(expected)


def test_an_output_above_the_bound_drives_nothing_out() -> None:
    cache = WindowCache(ENTRY_BYTES + 40, MODEL)
    cache.look_up([window(1)]).learn(0, output(1.0, *[0.5] * 10))
    cache.look_up([window(2)]).learn(0, output(1.0, *[0.5] * 11))
    assert cache.look_up([window(1)]).cached
    assert not cache.look_up([window(2)]).cached


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_no_part_of_an_output_may_be_other_than_finite(bad: float) -> None:
    cache = WindowCache(CACHE, MODEL)
    for faulty in (output(bad, 0.5), output(1.0, 0.5, bad), output(None, bad)):
        cache.look_up([window(1)]).learn(0, faulty)
    assert cache.entry_count == 0
    for sound in (WindowOutput(None, None), WindowOutput(1.0, None), output(None, 0.5)):
        cache.look_up([window(1)]).learn(0, sound)
        assert cache.look_up([window(1)]).outputs[0].relevance_logit == sound.relevance_logit


def test_a_kept_output_is_a_copy_that_nobody_can_change() -> None:
    """Scorers hand out views of a whole batch."""
    cache = WindowCache(CACHE, MODEL)
    batch = np.full(1_000, 0.5, dtype=np.float32)
    cache.look_up([window(1)]).learn(0, WindowOutput(1.0, batch[:2]))
    batch[:] = 0.0
    kept = cache.look_up([window(1)]).outputs[0].keep_probabilities
    assert kept is not None
    assert kept.tolist() == [0.5, 0.5]
    assert kept.base is None
    with pytest.raises(ValueError, match="read-only"):
        kept[0] = 1.0


@pytest.mark.parametrize("count", [500, 1_366, 5_462])  # just after a hash table has grown
@pytest.mark.parametrize("tokens", [0, 300])
def test_the_bytes_are_those_that_python_takes(count: int, tokens: int) -> None:
    cache = WindowCache(1 << 30, MODEL)
    probabilities = [0.5] * tokens
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            cache.look_up([window(number)]).learn(0, output(number + 0.5, *probabilities))
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    assert 0.6 * cache.size < taken <= cache.size


def test_threads_may_share_it() -> None:
    """Lookups come from the pool while the event loop keeps what has run."""
    cache = WindowCache(20 * (ENTRY_BYTES + 4), MODEL)
    faults: list[float | None] = []

    def work(seed: int) -> None:
        for step in range(300):
            number = (seed * 7 + step * 13) % 40
            seen = cache.look_up([window(number)])
            if seen.cached and seen.outputs[0].relevance_logit != number:
                faults.append(seen.outputs[0].relevance_logit)
            seen.learn(0, output(float(number), 0.5))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not faults
    assert cache.entry_count == 20
    assert cache.size == cache.max_bytes
