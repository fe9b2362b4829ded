"""The engine in process: load a model once, then rerank and prune without a server."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from secateur.errors import FieldViolation, InvalidRequestError
from secateur.model.batching import default_budget, run_within_memory, token_budget_batches
from secateur.model.calibration import Calibration
from secateur.model.engine import EncodedWindow, Engine, PreparedPassage, PreparedQuery
from secateur.model.highlight import highlight
from secateur.model.prepared import WindowOutput
from secateur.model.token_limits import check_request_tokens
from secateur.model.validation import validate, validate_highlight
from secateur.types import (
    FragmentFormat,
    HighlightedPassages,
    Limits,
    ModelInfo,
    ModelRef,
    OffsetUnit,
    Passage,
    PassageError,
    PrunedPassage,
    PruneOptions,
    RankedPassages,
    Timing,
)

OUT_OF_MEMORY = PassageError(
    "RESOURCE_EXHAUSTED", "The passage does not fit into the memory of the model's device."
)


class Pruner:
    """Reranks and prunes passages with one loaded model.

    Load it after a fork, not before: the threads of a pass do not survive one.
    Thread-safe: calls may overlap, their forward passes take turns. A batch holds at most
    ``max_batch_tokens`` tokens with its padding, and ``max_batch_windows`` windows; by default
    what suits the device (``batching.default_budget``).
    """

    def __init__(
        self,
        engine: Engine,
        *,
        max_batch_tokens: int | None = None,
        max_batch_windows: int | None = None,
    ) -> None:
        self.engine = engine
        self.info: ModelInfo = engine.info
        budget = default_budget(engine.info.device)
        self._max_batch_tokens = budget.tokens if max_batch_tokens is None else max_batch_tokens
        self._max_batch_windows = budget.windows if max_batch_windows is None else max_batch_windows
        self._device = threading.Lock()

    @classmethod
    def load(
        cls,
        name_or_path: str | os.PathLike[str] | None = None,
        *,
        revision: str | None = None,
        dtype: str = "auto",
        device: str = "cpu",
        limits: Limits | None = None,
        num_threads: int | None = None,
        calibration: str | os.PathLike[str] | None = None,
        allow_pickle: bool = False,
    ) -> Pruner:
        """Load a checkpoint of any family in docs/models.md; without a name the embedded one.

        name_or_path: a folder, or a hub id ``owner/name`` (also ``owner/name@revision``).
        revision: branch, tag or commit of a hub id.
        dtype: arithmetic of the linear layers, "float32", "bfloat16" or "int8"; "auto" is the
            fastest that the checkpoint's own record allows on this machine (docs/performance.md).
        device: a torch device name. limits: bounds on requests.
        num_threads: torch's threads for the whole process; ``None`` leaves them alone.
        calibration: file of ``secateur calibrate`` with the default threshold and keep rule.
        allow_pickle: also read weights in pickles, tensors only; never needed for safetensors.
        Raises CheckpointError for what cannot be loaded, ValueError for a bad argument or a
        calibration of other weights.
        """
        return cls(
            load_engine(
                name_or_path,
                revision=revision,
                dtype=dtype,
                device=device,
                limits=limits,
                num_threads=num_threads,
                calibration=calibration,
                allow_pickle=allow_pickle,
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
        self._validate(query, texts, options)
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
            lambda: self._validate(query, texts, options),
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

    def _validate(self, query: str, passages: Sequence[Passage], options: PruneOptions) -> None:
        engine = self.engine
        validate(
            query,
            passages,
            options,
            self.info.limits,
            self.info,
            engine.count_tokens,
            engine.count_query_tokens,
        )

    def _rerank_and_prune(
        self, query: str, passages: Sequence[Passage], options: PruneOptions
    ) -> RankedPassages:
        started = time.perf_counter()
        prepared_query = self.engine.prepare_query(query, options)
        prepared = self.engine.prepare_passages(prepared_query, passages)
        input_tokens = sum(passage.input_token_count for passage in prepared)
        check_request_tokens(input_tokens, len(prepared), self.info.limits)
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
    revision: str | None = None,
    dtype: str = "auto",
    device: str = "cpu",
    limits: Limits | None = None,
    num_threads: int | None = None,
    calibration: str | os.PathLike[str] | None = None,
    allow_pickle: bool = False,
) -> Engine:
    """The engine of a checkpoint; see :meth:`Pruner.load`."""
    import torch  # heavy, and a Pruner on a given engine does without

    from secateur.model.checkpoints.load import load_checkpoint
    from secateur.model.checkpoints.serve import engine_of
    from secateur.model.modes import check_mode

    check_mode(dtype, device)
    calibrated = None if calibration is None else Calibration.load(calibration)
    if num_threads is not None:
        if num_threads < 1:
            raise ValueError(f"num_threads is {num_threads}, must be at least 1")
        torch.set_num_threads(num_threads)
    checkpoint = load_checkpoint(name_or_path, revision=revision, allow_pickle=allow_pickle)
    engine = engine_of(checkpoint, dtype=dtype, device=device, limits=limits or Limits())
    if calibrated is not None:
        engine.info = calibrated.apply(engine.info)
    return engine


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
