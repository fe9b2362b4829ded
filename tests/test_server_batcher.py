"""The batcher alone, with made-up windows: what runs together, what is dropped, what fails."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from batcher_harness import (
    PATIENCE,
    Clock,
    Model,
    ask,
    batching,
    held,
    logits,
    passages,
    tasks_of,
    window,
)

from secateur.errors import DeadlineExceededError, OverloadedError, UnavailableError
from secateur.model.prepared import EncodedWindow
from secateur.server.batcher import OUT_OF_MEMORY
from secateur.types import PassageError


async def test_concurrent_calls_share_a_batch() -> None:
    model = Model()
    async with batching(model) as batcher:
        await held(model, batcher)
        tasks = await tasks_of(*(ask(batcher, [10]) for _ in range(5)))
        model.gate.set()
        assert [logits(await task) for task in tasks] == [[10.0]] * 5
    assert model.batches == [[10] * 5]


async def test_a_passage_gets_its_windows_back_in_order() -> None:
    model = Model()
    async with batching(model, max_batch_windows=2) as batcher:
        with batcher.call() as call:
            marks = [[window(4, 1), window(9, 2), window(5, 3)], [], [window(7, 4)]]
            outcomes = await asyncio.gather(*call.submit(passages(marks)))
    found = [[o.relevance_logit for o in outcome] for outcome in outcomes]  # type: ignore[union-attr]
    assert found == [[1.0, 2.0, 3.0], [], [4.0]]


async def test_batches_keep_to_the_padded_budget_and_an_item_above_it_goes_alone() -> None:
    """F11: an item larger than the batch budget must not loop for ever or stall others."""
    model = Model()
    lengths = [250, 3, 40, 45, 30, 50, 2, 90, 100]
    async with batching(model) as batcher:
        await held(model, batcher)
        (task,) = await tasks_of(ask(batcher, lengths))
        model.gate.set()
        assert logits(await task) == lengths
    assert sorted(n for batch in model.batches for n in batch) == sorted(lengths)
    assert [250] in model.batches
    for batch in model.batches:
        assert len(batch) == 1 or max(batch) * len(batch) <= 100
        assert max(batch) * len(batch) <= 2 * sum(batch)  # at most half of it is padding


async def test_at_most_so_many_windows_a_batch() -> None:
    model = Model()
    async with batching(model, max_batch_windows=3) as batcher:
        await held(model, batcher)
        (task,) = await tasks_of(ask(batcher, [2] * 7))
        model.gate.set()
        await task
    assert [len(batch) for batch in model.batches] == [3, 3, 1]


async def test_a_giant_call_does_not_starve_a_small_one() -> None:
    model = Model()
    async with batching(model) as batcher:
        await held(model, batcher)
        giant, small = await tasks_of(ask(batcher, [50] * 40), ask(batcher, [7, 8]))
        model.gate.set()
        await small
        assert [8, 7] in model.batches[:3]
        assert not giant.done()
        await giant
    assert len(model.batches) == 21


async def test_small_calls_are_done_in_the_order_of_arrival() -> None:
    """Taking a batch of each call in turn would finish all of them last."""
    model = Model()
    async with batching(model, max_batch_windows=2) as batcher:
        await held(model, batcher)
        tasks = await tasks_of(*(ask(batcher, [20 + name] * 4) for name in range(3)))
        model.gate.set()
        await asyncio.gather(*tasks)
    assert model.batches == [[20, 20], [20, 20], [21, 21], [21, 21], [22, 22], [22, 22]]


async def test_calls_of_odd_lengths_get_their_turns() -> None:
    """Filling by like length must not pass over a call for ever."""
    model = Model()
    async with batching(model, max_batch_windows=2) as batcher:
        await held(model, batcher)
        tasks = await tasks_of(*(ask(batcher, [length] * 4) for length in (30, 99, 60)))
        model.gate.set()
        await asyncio.gather(*tasks)
    assert model.batches == [[30, 30], [99], [60], [30, 30], *[[99], [60]] * 3]


async def test_after_a_cancel_no_later_batch_holds_the_call() -> None:
    """F19: a cancel ends the coroutine but not what waits in the queue."""
    model = Model()
    async with batching(model) as batcher:
        await held(model, batcher)
        gone, other = await tasks_of(ask(batcher, [20] * 30), ask(batcher, [5]))
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        assert batcher.queued_tokens == 5
        model.gate.set()
        await other
    assert model.batches == [[5]]


async def test_a_call_cancelled_while_it_runs_costs_at_most_that_batch() -> None:
    model = Model()
    async with batching(model) as batcher:
        model.gate.clear()
        (gone,) = await tasks_of(ask(batcher, [50] * 30))
        await asyncio.to_thread(model.started.wait, PATIENCE)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        model.gate.set()
        await ask(batcher, [7])
    assert model.batches == [[50, 50], [7]]


async def test_work_past_its_deadline_is_dropped_when_the_batch_is_built() -> None:
    model, clock = Model(), Clock()
    async with batching(model, clock=clock) as batcher:
        await held(model, batcher)
        late, timely = await tasks_of(
            ask(batcher, [20] * 30, deadline=5.0), ask(batcher, [5], deadline=7.0)
        )
        clock.now = 6.0
        model.gate.set()
        with pytest.raises(DeadlineExceededError):
            await late
        assert logits(await timely) == [5.0]
    assert model.batches == [[5]]


async def test_a_deadline_that_passes_during_the_first_batch_stops_the_second() -> None:
    model, clock = Model(), Clock()

    def pass_time() -> None:
        clock.now += 3.0

    model.during = pass_time
    async with batching(model, clock=clock) as batcher:
        with pytest.raises(DeadlineExceededError):
            await ask(batcher, [50] * 30, deadline=5.0)
    assert len(model.batches) == 2


async def test_a_full_queue_refuses_at_once_and_says_when_to_retry() -> None:
    model = Model()
    async with batching(model, max_queue_tokens=100) as batcher:
        await held(model, batcher)
        accepted = await tasks_of(ask(batcher, [40]), ask(batcher, [50]))
        with pytest.raises(OverloadedError) as caught:
            await ask(batcher, [11])
        assert caught.value.retry_after_seconds > 0
        batcher.check_room()
        accepted += await tasks_of(ask(batcher, [10]))
        with pytest.raises(OverloadedError):
            batcher.check_room()
        model.gate.set()
        assert [logits(await task) for task in accepted] == [[40.0], [50.0], [10.0]]
        batcher.check_room()


async def test_a_giant_call_counts_for_half_of_the_queue() -> None:
    """Else it would be refused for ever, or keep everybody else out."""
    model = Model()
    async with batching(model, max_queue_tokens=100) as batcher:
        await held(model, batcher)
        giant, small = await tasks_of(ask(batcher, [50] * 100), ask(batcher, [50]))
        with pytest.raises(OverloadedError):
            await ask(batcher, [1])
        model.gate.set()
        assert len(await giant) == 100
        assert logits(await small) == [50.0]


async def test_an_admitted_call_may_go_on_when_the_queue_is_full() -> None:
    model = Model()
    async with batching(model, max_queue_tokens=100) as batcher:
        await held(model, batcher)
        with batcher.call() as stream:
            first = stream.submit(passages([[window(50)]]))
            others = await tasks_of(ask(batcher, [50]))
            second = stream.submit(passages([[window(50)]]))
            model.gate.set()
            await asyncio.gather(*first, *second, *others)


async def test_out_of_memory_halves_the_batch_then_fails_its_own_passage() -> None:
    """F11: out-of-memory fails its own entries, retried at half size."""

    def too_little(windows: Sequence[EncodedWindow]) -> None:
        if sum(w.token_count for w in windows) > 12:
            raise MemoryError

    model = Model(fail=too_little)
    async with batching(model) as batcher:
        await held(model, batcher)
        mine, other = await tasks_of(ask(batcher, [13, 10]), ask(batcher, [11, 12]))
        model.gate.set()
        assert logits(await mine) == [OUT_OF_MEMORY, 10.0]
        assert logits(await other) == [11.0, 12.0]
    assert [len(batch) for batch in model.batches] == [4, 2, 1, 1, 2, 1, 1]


async def test_one_bad_window_fails_its_passage_alone(caplog: pytest.LogCaptureFixture) -> None:
    def poison(windows: Sequence[EncodedWindow]) -> None:
        if any(w.input_ids[0] == 13 for w in windows):
            raise RuntimeError("secret")

    model = Model(fail=poison)
    async with batching(model) as batcher:
        outcomes = logits(await ask(batcher, [10, 13, 11]))
    assert [outcomes[0], outcomes[2]] == [10.0, 11.0]
    error = outcomes[1]
    assert isinstance(error, PassageError)
    assert error.code == "INTERNAL"
    assert "secret" not in error.message
    assert "secret" in caplog.text


async def test_a_model_that_loses_a_window_is_a_bug_of_that_batch_only() -> None:
    model = Model()
    batcher_run = model.run
    model.run = lambda windows: batcher_run(windows)[1:]  # type: ignore[method-assign]
    async with batching(model) as batcher:
        (outcome,) = await ask(batcher, [10])
    assert isinstance(outcome, PassageError)
    assert outcome.code == "INTERNAL"


async def test_a_dead_worker_fails_all_calls_and_tells() -> None:
    class Death(BaseException):
        pass

    def die(windows: Sequence[EncodedWindow]) -> None:
        if windows[0].token_count > 1:
            raise Death

    deaths: list[str] = []
    model = Model(fail=die)
    async with batching(model, on_death=lambda: deaths.append("dead")) as batcher:
        first = await held(model, batcher)
        running, waiting = await tasks_of(ask(batcher, [50, 50]), ask(batcher, [100] * 9))
        model.gate.set()
        await first
        for task in (running, waiting):
            with pytest.raises(UnavailableError, match="worker died"):
                await task
        with pytest.raises(UnavailableError, match="worker died"):
            await ask(batcher, [1])
        with pytest.raises(UnavailableError, match="worker died"):
            batcher.check_room()
    assert deaths == ["dead"]


async def test_close_fails_what_waits_and_what_runs() -> None:
    model = Model()
    async with batching(model) as batcher:
        running = await held(model, batcher)
        (waiting,) = await tasks_of(ask(batcher, [50]))
        await batcher.close()
        for task in (running, waiting):
            with pytest.raises(UnavailableError):
                await task


async def test_times_are_told_apart() -> None:
    """Queue time is time with work submitted and none of it in the model."""
    model, clock = Model(), Clock()
    async with batching(model, clock=clock) as batcher:
        await held(model, batcher)
        with batcher.call() as call:
            futures = call.submit(passages([[window(60)], [window(60)]]))
            clock.now = 2.0

            def pass_time() -> None:
                clock.now += 5.0

            model.during = pass_time
            model.gate.set()
            await asyncio.gather(*futures)
            # 2 s and the other call's batch of 5 s; then two batches of its own.
            assert call.queue_seconds == 7.0
            assert call.inference_seconds == 10.0
            clock.now += 100.0
            assert call.queue_seconds == 7.0
            await asyncio.gather(*call.submit(passages([[window(3)]])))
            assert (call.queue_seconds, call.inference_seconds) == (7.0, 15.0)
