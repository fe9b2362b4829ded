"""The engine in process: load a model once, then rerank and prune without a server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from secateur.errors import FieldViolation, InvalidRequestError
from secateur.model.batching import (
    DEFAULT_BATCH_TOKENS,
    DEFAULT_BATCH_WINDOWS,
    run_within_memory,
    token_budget_batches,
)
from secateur.model.engine import EncodedWindow, Engine, PreparedPassage, PreparedQuery
from secateur.model.highlight import highlight
from secateur.model.prepared import WindowOutput
from secateur.model.validation import validate, validate_highlight
from secateur.types import (
    FragmentFormat,
    HighlightedPassages,
    KeepRule,
    Limits,
    ModelInfo,
    ModelRef,
    OffsetUnit,
    Passage,
    PassageError,
    PrunedPassage,
    PruneOptions,
    RankedPassages,
    ScoreSource,
    Timing,
)

OUT_OF_MEMORY = PassageError(
    "RESOURCE_EXHAUSTED", "The passage does not fit into the memory of the model's device."
)


class Pruner:
    """Reranks and prunes passages with one loaded model.

    Thread-safe: calls may overlap, their forward passes take turns. A batch holds at most
    ``max_batch_tokens`` tokens with its padding, and ``max_batch_windows`` windows.
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_batch_tokens: int = DEFAULT_BATCH_TOKENS,
        max_batch_windows: int = DEFAULT_BATCH_WINDOWS,
    ) -> None:
        self.engine = engine
        self.info: ModelInfo = engine.info
        self._max_batch_tokens = max_batch_tokens
        self._max_batch_windows = max_batch_windows
        self._device = threading.Lock()

    @classmethod
    def load(
        cls,
        name_or_path: str | os.PathLike[str] | None = None,
        *,
        dtype: str = "float32",
        device: str = "cpu",
        limits: Limits | None = None,
        num_threads: int | None = None,
    ) -> Pruner:
        """Load a checkpoint folder; without a name the embedded model.

        dtype: "float32" or "bfloat16". device: a torch device name. limits: bounds on requests.
        num_threads: torch's threads for the whole process; ``None`` leaves them alone.
        Raises CheckpointError for a folder that cannot be loaded, ValueError for a bad argument.
        """
        return cls(
            load_engine(
                name_or_path, dtype=dtype, device=device, limits=limits, num_threads=num_threads
            )
        )

    def rerank_and_prune(
        self,
        query: str,
        passages: Sequence[Passage | str],
        options: PruneOptions | None = None,
    ) -> RankedPassages:
        """Rank the passages for the query and drop their irrelevant sentences.

        A string stands for a passage without id and title. No passages give no results.
        Raises InvalidRequestError with every fault of the request, UnsupportedByModelError,
        NotImplementedOptionError. A passage that fails alone has ``error`` set in its result.
        """
        texts = _as_passages(passages)
        options = options or PruneOptions()
        validate(query, texts, options, self.info.limits, self.info)
        return self._rerank_and_prune(query, texts, options)

    def highlight(
        self,
        query: str,
        passages: Sequence[Passage | str],
        options: PruneOptions | None = None,
        *,
        pre_tag: str = "<mark>",
        post_tag: str = "</mark>",
        fragment_format: FragmentFormat = FragmentFormat.NONE,
    ) -> HighlightedPassages:
        """Rank the passages and give the spans of their relevant sentences.

        See :func:`secateur.model.highlight.highlight` for spans and fragments, and
        :meth:`rerank_and_prune` for the rest and the errors raised.
        """
        texts = _as_passages(passages)
        options = options or PruneOptions()
        _all_at_once(
            lambda: validate_highlight(options, pre_tag, post_tag, fragment_format),
            lambda: validate(query, texts, options, self.info.limits, self.info),
        )
        ranked = self._rerank_and_prune(query, texts, options)
        return HighlightedPassages(
            results=tuple(
                highlight(
                    texts[result.index].text,
                    result,
                    offset_unit=OffsetUnit(options.offset_unit),
                    pre_tag=pre_tag,
                    post_tag=post_tag,
                    fragment_format=fragment_format,
                )
                for result in ranked.results
            ),
            applied_threshold=ranked.applied_threshold,
            applied_keep_rule=ranked.applied_keep_rule,
            score_source=ranked.score_source,
            omitted_passage_count=ranked.omitted_passage_count,
            query_truncated=ranked.query_truncated,
            warnings=ranked.warnings,
            model=ranked.model,
            usage=ranked.usage,
            timing=ranked.timing,
        )

    def _rerank_and_prune(
        self, query: str, passages: Sequence[Passage], options: PruneOptions
    ) -> RankedPassages:
        started = time.perf_counter()
        prepared_query = self.engine.prepare_query(query, options)
        prepared = self.engine.prepare_passages(prepared_query, passages)
        tokenized = time.perf_counter()
        outputs = self._run([window for passage in prepared for window in passage.windows])
        inferred = time.perf_counter()
        results = self._assemble(prepared_query, prepared, outputs)
        ranked, omitted = self.engine.rank(prepared_query, results)
        return RankedPassages(
            results=ranked,
            applied_threshold=prepared_query.threshold,
            applied_keep_rule=prepared_query.keep_rule,
            score_source=self.info.score_source,
            omitted_passage_count=omitted,
            query_truncated=prepared_query.truncated,
            warnings=self.engine.warnings(prepared),
            model=ModelRef(self.info.id, self.info.revision, self.info.dtype),
            usage=self.engine.usage(prepared_query, prepared, results),
            timing=Timing(
                tokenize_ms=(tokenized - started) * 1_000,
                inference_ms=(inferred - tokenized) * 1_000,
                total_ms=(time.perf_counter() - started) * 1_000,
            ),
        )

    def _run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput | MemoryError]:
        """Run all windows in batches of like length; outputs in the order given."""
        outputs: dict[int, WindowOutput | MemoryError] = {}
        batches = token_budget_batches(
            [window.token_count for window in windows],
            self._max_batch_tokens,
            self._max_batch_windows,
        )
        for batch in batches:
            with self._device:
                part = run_within_memory(self.engine.run, [windows[i] for i in batch])
            outputs.update(zip(batch, part, strict=True))
        return [outputs[i] for i in range(len(windows))]

    def _assemble(
        self,
        query: PreparedQuery,
        prepared: Sequence[PreparedPassage],
        outputs: Sequence[WindowOutput | MemoryError],
    ) -> list[PrunedPassage]:
        results = []
        position = 0
        for passage in prepared:
            part = outputs[position : position + len(passage.windows)]
            position += len(passage.windows)
            scored = [output for output in part if isinstance(output, WindowOutput)]
            if len(scored) == len(part):
                results.append(self.engine.assemble(query, passage, scored))
            else:
                results.append(self.engine.failed(passage, passage.passage, OUT_OF_MEMORY))
        return results


def load_engine(
    name_or_path: str | os.PathLike[str] | None = None,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    limits: Limits | None = None,
    num_threads: int | None = None,
) -> Engine:
    """The engine of a checkpoint folder; see :meth:`Pruner.load`."""
    import torch  # heavy, and a Pruner on a given engine does without

    from secateur.model.checkpoint import load_checkpoint
    from secateur.model.scorer import TorchScorer
    from secateur.model.splitter import SentenceSplitter
    from secateur.model.tokenization import FastTokenizer
    from secateur.model.windows import max_query_tokens

    if num_threads is not None:
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}, must be at least 1")
        torch.set_num_threads(num_threads)
    checkpoint = load_checkpoint(name_or_path)
    settings = checkpoint.settings
    tokenizer = FastTokenizer(checkpoint.tokenizer)
    scorer = TorchScorer(checkpoint.model, dtype=dtype, device=device, pad_id=tokenizer.pad_id)
    info = ModelInfo(
        id=settings.id,
        revision=settings.revision,
        family=settings.family,
        dtype=dtype,
        device=str(scorer.device),
        can_rerank=True,
        can_prune=True,
        score_source=ScoreSource.PASSAGE_HEAD,
        languages=settings.languages,
        window_tokens=settings.window_tokens,
        max_query_tokens=max_query_tokens(settings.window_tokens),
        default_threshold=settings.default_threshold,
        default_keep_rule=settings.default_keep_rule,
        keep_rules=(KeepRule.MEAN_PROBABILITY, KeepRule.TOKEN_VOTE, KeepRule.MAJORITY),
        limits=limits or Limits(),
    )
    return Engine(tokenizer, scorer, SentenceSplitter(), info)


def _as_passages(passages: Sequence[Passage | str]) -> tuple[Passage, ...]:
    if isinstance(passages, str):
        raise InvalidRequestError(
            [FieldViolation("passages", "must be a sequence of passages, not one text")]
        )
    texts: list[Passage] = []
    violations: list[FieldViolation] = []
    for i, given in enumerate(passages):
        passage = Passage(given) if isinstance(given, str) else given
        if not isinstance(passage, Passage):
            violations.append(
                FieldViolation(
                    f"passages[{i}]",
                    f"must be a Passage or text, not {type(passage).__name__}",
                    "WRONG_TYPE",
                )
            )
            continue
        texts.append(replace(passage, sentences=tuple(passage.sentences)))
    if violations:
        raise InvalidRequestError(violations)
    return tuple(texts)


def _all_at_once(*checks: Callable[[], None]) -> None:
    """Run every check; raise one InvalidRequestError with the violations of all."""
    violations: list[FieldViolation] = []
    for check in checks:
        try:
            check()
        except InvalidRequestError as error:
            violations.extend(error.violations)
    if violations:
        raise InvalidRequestError(violations)
