"""Who is let into the queue, and when: by room, by the time a call has, in fair turns."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest
from batcher_harness import Clock, Model, ask, batching, held, logits, tasks_of

from secateur.errors import DeadlineExceededError, OverloadedError
from secateur.model.prepared import EncodedWindow
from secateur.server.batcher import Batcher
from secateur.server.speed import Speed


async def measured(model: Model, batcher: Batcher, clock: Clock, seconds: float = 1.0) -> None:
    """Let one full batch of 100 tokens run for so long."""

    def pass_time() -> None:
        clock.now += seconds

    model.during = pass_time
    await ask(batcher, [100])
    model.during = lambda: None
    model.batches.clear()


async def test_nothing_is_judged_before_the_first_measurement() -> None:
    model, clock = Model(), Clock()
    async with batching(model, clock=clock) as batcher:
        assert len(await ask(batcher, [100] * 50, deadline=0.001)) == 50


async def test_a_call_that_cannot_be_done_in_its_time_is_refused_at_once() -> None:
    """It used to run until its deadline, for nothing."""
    model, clock = Model(), Clock()
    async with batching(model, clock=clock) as batcher:
        await measured(model, batcher, clock)  # 100 tokens a second
        with pytest.raises(DeadlineExceededError, match="500 tokens take at least 5 s"):
            await ask(batcher, [100] * 5, deadline=clock.now + 4.9)
        assert model.batches == []
        assert len(await ask(batcher, [100] * 5, deadline=clock.now + 5.0)) == 5
        assert len(await ask(batcher, [100] * 5)) == 5


async def test_a_call_that_others_leave_too_little_time_is_told_when_to_retry() -> None:
    """Its work would fit, so a later try or another server may do it: that is overload."""
    model, clock = Model(), Clock()
    async with batching(model, clock=clock) as batcher:
        await measured(model, batcher, clock)
        await held(model, batcher)
        waiting = await tasks_of(ask(batcher, [100] * 3), ask(batcher, [100] * 3))
        with pytest.raises(OverloadedError, match="400 tokens to run before it") as caught:
            await ask(batcher, [100] * 2, deadline=clock.now + 5.9)
        assert caught.value.retry_after_seconds == 2.0
        waiting += await tasks_of(ask(batcher, [100] * 2, deadline=clock.now + 6.0))
        model.gate.set()
        assert [len(await task) for task in waiting] == [3, 3, 2]


async def test_a_giant_before_it_costs_a_small_call_one_turn() -> None:
    """Turns are fair, so a small call is not refused for the sake of all that a giant waits for."""
    model, clock = Model(), Clock()
    async with batching(model, clock=clock) as batcher:
        await measured(model, batcher, clock)
        await held(model, batcher)
        giant, small = await tasks_of(
            ask(batcher, [100] * 40), ask(batcher, [10], deadline=clock.now + 0.7)
        )
        model.gate.set()
        assert logits(await small) == [10.0]
        assert not giant.done()
        await giant


async def test_room_is_checked_before_any_work_with_the_deadline() -> None:
    model, clock = Model(), Clock()
    async with batching(model, clock=clock) as batcher:
        await measured(model, batcher, clock)
        await held(model, batcher)
        waiting = await tasks_of(ask(batcher, [100] * 3))
        batcher.check_room(clock.now + 1.0)
        with pytest.raises(OverloadedError):
            batcher.check_room(clock.now + 0.5)
        model.gate.set()
        await asyncio.gather(*waiting)


async def test_small_batches_do_not_make_the_model_look_slow() -> None:
    """A batch of one short window has a fraction of the speed of a full one."""
    model, clock = Model(), Clock()
    async with batching(model, clock=clock) as batcher:
        await measured(model, batcher, clock)

        def pass_time() -> None:
            clock.now += 1.0

        model.during = pass_time
        await ask(batcher, [5])  # 5 tokens a second
        model.during = lambda: None
        assert len(await ask(batcher, [100] * 5, deadline=clock.now + 5.0)) == 5


def test_an_old_measurement_is_forgotten() -> None:
    """A wrong one would else keep out every call that could correct it, for ever."""
    speed = Speed(full_tokens=50)
    assert speed.seconds_for(100, now=0.0) is None
    speed.measured(49, 1.0, now=0.0)
    speed.measured(100, 0.0, now=0.0)
    assert speed.seconds_for(100, now=0.0) is None
    speed.measured(100, 1.0, now=0.0)
    assert speed.seconds_for(200, now=60.0) == 2.0
    assert speed.seconds_for(200, now=60.1) is None
    speed.measured(100, 4.0, now=70.0)
    assert speed.seconds_for(100, now=70.0) == 4.0
    speed.measured(100, 1.0, now=71.0)
    assert speed.seconds_for(100, now=71.0) == pytest.approx(100 / (25 + 0.2 * 75))


async def test_a_deadline_stops_the_halves_of_a_failed_batch() -> None:
    model, clock = Model(), Clock()

    def fail(windows: Any) -> None:
        clock.now += 1.0
        raise MemoryError

    model.fail = fail
    async with batching(model, clock=clock) as batcher:
        with pytest.raises(DeadlineExceededError):
            await ask(batcher, [10] * 8, deadline=2.0)
    assert [len(batch) for batch in model.batches] == [8, 4]


async def test_a_cancel_stops_the_halves_of_a_failed_batch() -> None:
    """F19: at most one more batch runs."""
    model = Model()

    def fail(windows: Sequence[EncodedWindow]) -> None:
        if windows[0].token_count == 10:
            raise MemoryError

    model.fail = fail
    async with batching(model) as batcher:
        model.gate.clear()
        (gone,) = await tasks_of(ask(batcher, [10] * 8))
        await asyncio.to_thread(model.started.wait)
        gone.cancel()
        with pytest.raises(asyncio.CancelledError):
            await gone
        model.gate.set()
        await ask(batcher, [7])
    assert [len(batch) for batch in model.batches] == [8, 1]


async def test_small_calls_run_in_their_turns_while_giants_wait() -> None:
    """By counting: with two giants in the queue, a small call waits for at most a turn of each."""
    model = Model()
    async with batching(model) as batcher:
        await held(model, batcher)
        giants = await tasks_of(*(ask(batcher, [50 + name] * 40) for name in range(2)))
        small = await tasks_of(*(ask(batcher, [90 + name]) for name in range(5)))
        model.gate.set()
        await asyncio.gather(*small)
        assert not any(giant.done() for giant in giants)
        done = [batch[0] for batch in model.batches]
        assert [length for length in done if length >= 90] == [90, 91, 92, 93, 94]
        assert done.index(94) < 8
        for giant in giants:
            giant.cancel()


async def test_over_the_limit_refused_while_the_accepted_keep_their_share() -> None:
    model = Model()
    async with batching(model, max_queue_tokens=200) as batcher:
        await held(model, batcher)
        accepted = await tasks_of(*(ask(batcher, [50]) for _ in range(4)))
        for _ in range(20):
            with pytest.raises(OverloadedError) as caught:
                await ask(batcher, [50])
            assert caught.value.limit == 200
            assert caught.value.retry_after_seconds > 0
        model.gate.set()
        assert [logits(await task) for task in accepted] == [[50.0]] * 4
    assert model.batches == [[50, 50], [50, 50]]
