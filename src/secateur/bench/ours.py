"""The engine as a side of the comparison: one call a query, or all queries in one call."""

from __future__ import annotations

from collections.abc import Sequence

from secateur.bench.agreement import Verdict
from secateur.bench.timing import Side
from secateur.bench.workload import Query, Workload
from secateur.errors import InvalidRequestError, SecateurError
from secateur.model.batching import default_budget, token_budget_batches
from secateur.model.prepared import WindowOutput
from secateur.model.pruner import Pruner
from secateur.model.token_limits import check_request_tokens
from secateur.model.validation import validate
from secateur.types import KeepRule, Passage, PrunedPassage, PruneOptions, RankedPassages

OPTIONS = PruneOptions(keep_rule=KeepRule.MEAN_PROBABILITY)
"""The rule that the plain way has, too; the threshold is the model's."""


def load_modes(model: str | None, modes: Sequence[str]) -> tuple[dict[str, Pruner], dict[str, str]]:
    """A pruner in each mode, and why the others do not run here.

    The mode of ``Pruner.load``'s own defaults comes first. Raises CheckpointError.
    """
    default = Pruner.load(model)
    pruners = {default.info.dtype: default}
    unavailable: dict[str, str] = {}
    for mode in modes:
        if mode in pruners:
            continue
        try:
            pruner = Pruner.load(model, dtype=mode)
            pruner.rerank_and_prune("What opens the valve?", ["The red handle opens the valve."])
        except (ValueError, RuntimeError, SecateurError) as error:
            unavailable[mode] = str(error)
        else:
            pruners[mode] = pruner
    return pruners, unavailable


def token_counts(pruner: Pruner, workload: Workload) -> tuple[list[int], list[int]]:
    """Tokens of each query, without padding: in all windows, and in pairs cut at one window.

    Raises ValueError with file and line for a query that the engine refuses.
    """
    engine, limits = pruner.engine, pruner.info.limits
    windowed, cut = [], []
    for query in workload.queries:
        passages = [Passage(text) for text in query.passages]
        try:
            validate(
                query.text,
                passages,
                OPTIONS,
                limits,
                pruner.info,
                engine.count_tokens,
                engine.count_query_tokens,
            )
            prepared_query = engine.prepare_query(query.text, OPTIONS)
            prepared = engine.prepare_passages(prepared_query, passages)
            tokens = sum(passage.input_token_count for passage in prepared)
            check_request_tokens(tokens, len(prepared), limits)
        except InvalidRequestError as error:
            raise ValueError(f"{query.where}: {error}") from None
        if empty := [passage.index for passage in prepared if not passage.windows]:
            raise ValueError(f"{query.where}: passages[{empty[0]}]: has no token to score")
        windowed.append(tokens)
        firsts = [passage.windows[0] for passage in prepared]
        fixed = [window.token_count - window.passage_token_count for window in firsts]
        cut.append(
            sum(
                min(pruner.info.window_tokens, special + len(passage.token_starts))
                for special, passage in zip(fixed, prepared, strict=True)
            )
        )
    return windowed, cut


def engine_side(name: str, pruner: Pruner, tokens: Sequence[int]) -> Side:
    """One pruner."""
    return Side(
        name=name,
        one=lambda query: pruner.rerank_and_prune(query.text, query.passages, OPTIONS),
        all=lambda queries: prune_at_once(pruner, queries),
        tokens=tokens,
        read=verdicts,
    )


def verdicts(answer: RankedPassages) -> list[Verdict]:
    """In the order of the passages. Raises SecateurError for a passage that failed."""
    found = []
    for result in sorted(answer.results, key=lambda result: result.index):
        if result.error is not None or result.relevance_logit is None:
            raise SecateurError(f"passage {result.index} failed: {result.error}")
        kept = tuple(sentence.kept for sentence in result.sentences)
        found.append(Verdict(result.relevance_logit, kept, result.window_count))
    return found


def prune_at_once(pruner: Pruner, queries: Sequence[Query]) -> list[list[PrunedPassage]]:
    """All queries in one call, their windows merged into batches as the server's batcher does.

    Returns the results of each query, by its passages.
    """
    engine = pruner.engine
    prepared = []
    for query in queries:
        prepared_query = engine.prepare_query(query.text, OPTIONS)
        passages = [Passage(text) for text in query.passages]
        prepared.append((prepared_query, engine.prepare_passages(prepared_query, passages)))
    windows = [
        window for _, passages in prepared for passage in passages for window in passage.windows
    ]
    outputs: dict[int, WindowOutput] = {}
    lengths = [window.token_count for window in windows]
    budget = default_budget(pruner.info.device)
    for batch in token_budget_batches(lengths, budget.tokens, budget.windows):
        outputs.update(zip(batch, engine.run([windows[i] for i in batch]), strict=True))
    waiting = iter(range(len(windows)))
    return [
        [
            engine.assemble(query, passage, [outputs[next(waiting)] for _ in passage.windows])
            for passage in passages
        ]
        for query, passages in prepared
    ]
