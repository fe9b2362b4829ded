"""Speed and agreement on a CUDA device, beside transformers' own DeBERTa-v2 classes.

    python benchmarks/gpu.py [--device cuda:0] [--record FILE]
    python benchmarks/gpu.py --device cpu --smoke

Two models: the embedded one, and a random one of Provence's size and layout (DeBERTa-v3-large with
two heads), which is written to a temporary folder. Each in float32 and bfloat16, by ``engine`` (the
engine's model step: windows in, logits and probabilities out, copies to and from the device
included) and by ``stock`` (the same batches through unchanged transformers classes), with batches
of 8k to 64k tokens. Answers are compared with the first ones, those of ``stock`` in float32 on the
same device. ``end_to_end`` is ``Pruner.rerank_and_prune`` with its default batches, ``alone`` how
far the engine's answers on a window depend on its neighbours in the batch.

Begins nothing after 7.5 minutes: what there was no time for is named in the record. ``--smoke``
takes the same steps with a tiny random model and a few passages, to see that the script works.
"""

from __future__ import annotations

import argparse
import gc
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import save_file
from torch.nn.utils.rnn import pad_sequence
from transformers import DebertaV2Config
from transformers.models.deberta_v2.modeling_deberta_v2 import DisentangledSelfAttention

from secateur.bench.agreement import Verdict, agreement
from secateur.bench.machine import commit, machine
from secateur.bench.timing import Spread, digits
from secateur.bench.workload import QUERIES, passages_of_words
from secateur.model.batching import BatchBudget, token_budget_batches
from secateur.model.checkpoints.load import load_checkpoint
from secateur.model.checkpoints.source import resolve
from secateur.model.deberta import DebertaV2ForRerankAndPrune
from secateur.model.engine import Engine
from secateur.model.prepared import EncodedWindow, PreparedPassage, PreparedQuery, WindowOutput
from secateur.model.pruner import Pruner, load_engine
from secateur.model.two_heads import TwoHeadModel
from secateur.types import KeepRule, Passage, PruneOptions

LIMIT_SECONDS = 450.0
DTYPES = ("float32", "bfloat16")
PASSES = 3
ALONE = 32
"""Windows, at most, that are also run one by one."""

LATE = {"unavailable": "out of time"}

PROVENCE: Mapping[str, Any] = {
    "vocab_size": 128_100,
    "hidden_size": 1_024,
    "num_hidden_layers": 24,
    "num_attention_heads": 16,
    "intermediate_size": 4_096,
    "max_position_embeddings": 512,
    "max_relative_positions": -1,
    "position_buckets": 256,
    "relative_attention": True,
    "pos_att_type": ["p2c", "c2p"],
    "share_att_key": True,
    "norm_rel_ebd": "layer_norm",
    "position_biased_input": False,
    "type_vocab_size": 0,
    "layer_norm_eps": 1e-7,
    "pooler_hidden_size": 1_024,
    "pooler_hidden_act": "gelu",
}
TINY = {**PROVENCE, "hidden_size": 32, "pooler_hidden_size": 32, "intermediate_size": 64}
TINY |= {"num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 30_522}
TINY |= {"initializer_range": 0.3}

Run = Callable[[Sequence[EncodedWindow]], list[WindowOutput]]


@dataclass(frozen=True)
class Size:
    """How much is measured.

    embedded: that model, too. random_model: a config. threshold: of the random model, where about
    half of the sentences pass it. passages: of each number of words. budgets: tokens of a batch.
    """

    embedded: bool
    random_model: Mapping[str, Any]
    threshold: float
    passages: int
    words: tuple[int, ...]
    budgets: tuple[int, ...]


FULL = Size(True, PROVENCE, 0.25, 128, (40, 80, 150, 250, 350), (8_192, 16_384, 32_768, 65_536))
SMOKE = Size(False, TINY, 0.77, 4, (20, 60), (256, 1_024))


class Stock:
    """A checkpoint on transformers' own attention."""

    def __init__(self, model: TwoHeadModel, dtype: str, device: str, pad_id: int) -> None:
        encoder: Any = model.encoder
        for layer in encoder.encoder.layer:
            layer.attention.self.__class__ = DisentangledSelfAttention
        for parameter in encoder.parameters():
            parameter.data = parameter.data.to(getattr(torch, dtype))
        self._model = model.to(device).eval()
        self._device, self._pad_id = device, pad_id

    @torch.inference_mode()
    def run(self, windows: Sequence[EncodedWindow]) -> list[WindowOutput]:
        """Logits and keep probabilities in float32, in one padded pass."""
        ids = [torch.from_numpy(window.input_ids) for window in windows]
        types = [torch.from_numpy(window.token_type_ids) for window in windows]
        inputs = (
            pad_sequence(ids, batch_first=True, padding_value=self._pad_id),
            pad_sequence([torch.ones_like(row) for row in ids], batch_first=True),
            pad_sequence(types, batch_first=True),
        )
        scores, tokens = self._model(*(tensor.to(self._device) for tensor in inputs))
        keep = tokens.softmax(dim=-1)[..., 1].cpu().numpy()  # [B, L]
        return [
            WindowOutput(score, row[window.passage_tokens])
            for score, row, window in zip(scores.tolist(), keep, windows, strict=True)
        ]


class Work:
    """Prepared passages; their windows, in order. desk: an engine that only prepares and reads."""

    def __init__(self, desk: Engine, passages: Sequence[str], options: PruneOptions) -> None:
        self._desk = desk
        self.passage_count = len(passages)
        self.prepared: list[tuple[PreparedQuery, list[PreparedPassage]]] = []
        for number, text in enumerate(QUERIES):
            query = desk.prepare_query(text, options)
            own = [Passage(passage) for passage in passages[number :: len(QUERIES)]]
            self.prepared.append((query, desk.prepare_passages(query, own)))
        self.windows = [w for _, group in self.prepared for p in group for w in p.windows]
        self.tokens = sum(window.token_count for window in self.windows)

    def run(self, run: Run, budget: BatchBudget) -> list[WindowOutput]:
        """Everything, in batches of like length."""
        outputs: dict[int, WindowOutput] = {}
        lengths = [window.token_count for window in self.windows]
        for batch in token_budget_batches(lengths, budget.tokens, budget.windows):
            outputs.update(zip(batch, run([self.windows[i] for i in batch]), strict=True))
        return [outputs[i] for i in range(len(self.windows))]

    def verdicts(self, outputs: Sequence[WindowOutput]) -> dict[int, list[Verdict]]:
        """What the outputs say of each passage, by query. Raises RuntimeError where nothing."""
        waiting = iter(outputs)
        found: dict[int, list[Verdict]] = {}
        for number, (query, group) in enumerate(self.prepared):
            found[number] = []
            for passage in group:
                part = [next(waiting) for _ in passage.windows]
                result = self._desk.assemble(query, passage, part)
                if result.relevance_logit is None:
                    raise RuntimeError(f"passage {passage.index} has no score: {result.error}")
                kept = tuple(sentence.kept for sentence in result.sentences)
                found[number].append(Verdict(result.relevance_logit, kept, len(part)))
        return found


class Measurement:
    """One model on one device, row by row."""

    def __init__(
        self, model: str | None, passages: Sequence[str], threshold: float | None, device: str
    ) -> None:
        self._model, self._device, self._passages = model, device, passages
        self._options = PruneOptions(keep_rule=KeepRule.MEAN_PROBABILITY, threshold=threshold)
        desk = load_engine(model, dtype="float32")
        self.name = f"{desk.info.id}@{desk.info.revision}"
        self.work = Work(desk, passages, self._options)
        self._pad_id = desk.tokenizer.pad_id
        self._reference: dict[int, list[Verdict]] | None = None

    def rows(self, budgets: Sequence[int], until: float) -> Iterator[dict[str, Any]]:
        """Of each dtype, side and budget. until: nothing begins after this moment."""
        for dtype in DTYPES:
            model = load_checkpoint(self._model).model
            stock = Stock(model, dtype, self._device, self._pad_id)
            del model
            yield from self._side({"dtype": dtype, "side": "stock"}, stock.run, budgets, until)
            del stock
            self._clear()
            engine = load_engine(self._model, dtype=dtype, device=self._device)
            yield from self._side({"dtype": dtype, "side": "engine"}, engine.run, budgets, until)
            yield {"dtype": dtype, "side": "end_to_end", **self._end_to_end(engine, until)}
            yield {"dtype": dtype, "side": "alone", **self._alone(engine, until)}
            del engine
            self._clear()

    def _side(
        self, names: Mapping[str, Any], run: Run, budgets: Sequence[int], until: float
    ) -> Iterator[dict[str, Any]]:
        for tokens in budgets:
            self._clear()
            yield {**names, "batch_tokens": tokens, **self._row(run, tokens, until)}

    def _row(self, run: Run, tokens: int, until: float) -> dict[str, Any]:
        answers: list[list[WindowOutput]] = []
        budget = BatchBudget(tokens, 1_024)
        try:
            seconds = timed(lambda: answers.append(self.work.run(run, budget)), until)
        except (MemoryError, torch.OutOfMemoryError):
            return {"unavailable": "out of memory"}
        if not seconds:
            return LATE
        verdicts = self.work.verdicts(answers[0])
        self._reference = self._reference or verdicts
        same = asdict(agreement(verdicts, self._reference, single_windows=False))
        return {
            **{key: None if value is None else digits(value) for key, value in same.items()},
            "passages_per_second": rates(self.work.passage_count, seconds),
            "tokens_per_second": rates(self.work.tokens, seconds),
            "peak_memory_mb": self._peak_memory(),
        }

    def _end_to_end(self, engine: Engine, until: float) -> dict[str, Any]:
        pruner = Pruner(engine)
        texts = self._passages[:: len(QUERIES)]
        seconds = timed(lambda: pruner.rerank_and_prune(QUERIES[0], texts, self._options), until)
        return {"passages_per_second": rates(len(texts), seconds)} if seconds else LATE

    def _alone(self, engine: Engine, until: float) -> dict[str, Any]:
        """Largest differences between windows of all lengths run together and one by one."""
        if time.perf_counter() > until:
            return LATE
        windows = self.work.windows
        some = windows[:: -(-len(windows) // ALONE)]
        pairs = [(engine.run([w])[0], o) for w, o in zip(some, engine.run(some), strict=True)]
        logits = [abs(logit_of(alone) - logit_of(other)) for alone, other in pairs]
        probabilities = [abs(keep_of(alone) - keep_of(other)).max() for alone, other in pairs]
        return {
            "windows": len(some),
            "max_logit_difference": digits(max(logits)),
            "max_probability_difference": digits(float(max(probabilities))),
        }

    def _clear(self) -> None:
        if self._device.startswith("cuda"):
            gc.collect()
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats(self._device)

    def _peak_memory(self) -> float | None:
        """MiB of tensors on the device, weights included; ``None`` on a CPU."""
        if not self._device.startswith("cuda"):
            return None
        return round(torch.cuda.max_memory_allocated(self._device) / 2**20, 1)


def logit_of(output: WindowOutput) -> float:
    """Raises RuntimeError where there is none."""
    if output.relevance_logit is None:
        raise RuntimeError("a window has no score")
    return output.relevance_logit


def keep_of(output: WindowOutput) -> NDArray[np.float32]:
    """Probabilities. Raises RuntimeError where there are none."""
    if output.keep_probabilities is None:
        raise RuntimeError("a window has no probabilities")
    return output.keep_probabilities


def timed(work: Callable[[], object], until: float) -> list[float]:
    """Seconds of up to three runs, after one to warm up; of none that begins too late."""
    seconds = []
    for _ in range(1 + PASSES):
        began = time.perf_counter()
        if began > until:
            break
        work()
        seconds.append(time.perf_counter() - began)
    return seconds[1:]


def rates(amount: int, seconds: Sequence[float]) -> dict[str, float]:
    """What a second does: median, smallest and largest."""
    return Spread.of([amount / each for each in seconds]).to_json()


def write_provence(folder: Path, values: Mapping[str, Any]) -> None:
    """A random two-head checkpoint in Provence's layout, with the embedded model's tokenizer.

    The heads' weights are large enough for logits that differ from token to token.
    """
    torch.manual_seed(0)
    config = DebertaV2Config(**values)
    model = DebertaV2ForRerankAndPrune(config)
    for head in (model.classifier, model.token_classifier):
        torch.nn.init.normal_(head.weight, std=2 / head.in_features**0.5)
    raw = {**config.to_dict(), "architectures": ["Provence"], "model_type": "Provence"}
    (folder / "config.json").write_text(json.dumps(raw), encoding="utf-8")
    save_file(model.state_dict(), folder / "model.safetensors")
    tokenizer = resolve(None).folder / "tokenizer.json"
    (folder / "tokenizer.json").write_bytes(tokenizer.read_bytes())


def measure(device: str, size: Size, until: float) -> dict[str, Any]:
    """Both models; a line on each row goes to standard error."""
    passages = [text for words in size.words for text in passages_of_words(size.passages, words)]
    models = []
    with tempfile.TemporaryDirectory(prefix="provence-") as folder:
        write_provence(Path(folder), size.random_model)
        subjects: list[tuple[str | None, float | None]] = [(folder, size.threshold)]
        if size.embedded:
            subjects.insert(0, (None, None))
        for model, threshold in subjects:
            subject = Measurement(model, passages, threshold, device)
            rows = []
            for row in subject.rows(size.budgets, until):
                rows.append(row)
                print(subject.name, json.dumps(row), file=sys.stderr)
            lengths = [window.token_count for window in subject.work.windows]
            models.append(
                {
                    "model": subject.name if model is None else "random, of Provence's layout",
                    "passages": subject.work.passage_count,
                    "tokens": subject.work.tokens,
                    "tokens_of_a_window": Spread.of(lengths).to_json(),
                    "rows": rows,
                }
            )
    cuda = device.startswith("cuda")
    return {
        "machine": {
            **machine(),
            "device": torch.cuda.get_device_name(device) if cuda else device,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
        },
        "commit": commit(),
        "models": models,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    began = time.perf_counter()
    parser = argparse.ArgumentParser(description="Speed and agreement on a CUDA device.")
    parser.add_argument("--device", default="cuda:0", help="a CUDA device, or cpu with --smoke")
    parser.add_argument("--smoke", action="store_true", help="a tiny model and a few passages")
    parser.add_argument("--record", type=Path, help="also write the JSON record to this file")
    options = parser.parse_args(arguments)
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise SystemExit("torch finds no CUDA device here; this script measures one")
    if not options.device.startswith("cuda") and not options.smoke:
        raise SystemExit(f"--device {options.device} is for --smoke only; this measures CUDA")
    size = SMOKE if options.smoke else FULL
    text = json.dumps(measure(options.device, size, began + LIMIT_SECONDS), indent=2)
    print(text)
    if options.record is not None:
        options.record.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
