"""From a loaded checkpoint to the engine that serves it."""

from __future__ import annotations

import logging

from secateur.model.adapter import Adapter, PairTemplate
from secateur.model.checkpoints.load import Checkpoint
from secateur.model.engine import Engine
from secateur.model.modes import AUTO, fastest
from secateur.model.scorer import TorchScorer
from secateur.model.splitter import SentenceSplitter
from secateur.model.tokenization import FastTokenizer
from secateur.model.windows import max_query_tokens
from secateur.types import Limits, ModelInfo

logger = logging.getLogger(__name__)


def engine_of(checkpoint: Checkpoint, *, dtype: str, device: str, limits: Limits) -> Engine:
    """Wire tokenizer, scorer and splitter as the checkpoint's family wants them.

    dtype: ``auto`` is the fastest mode that the checkpoint's own record allows here.
    """
    if dtype == AUTO:
        dtype = fastest(checkpoint.modes, device)
        logger.info("dtype auto: %s", dtype)
    family, settings = checkpoint.family, checkpoint.settings
    tokenizer = FastTokenizer(checkpoint.tokenizer)
    scorer = TorchScorer(
        checkpoint.model,
        dtype=dtype,
        device=device,
        pad_id=tokenizer.pad_id,
        longest=settings.window_tokens,
    )
    template = _template(checkpoint, tokenizer)
    info = ModelInfo(
        id=settings.id,
        revision=settings.revision,
        family=settings.family,
        dtype=dtype,
        device=str(scorer.device),
        can_rerank=True,
        can_prune=family.can_prune,
        score_source=family.score_source,
        languages=settings.languages,
        window_tokens=settings.window_tokens,
        max_query_tokens=max_query_tokens(settings.window_tokens, template.special_tokens),
        default_threshold=settings.default_threshold,
        default_keep_rule=settings.default_keep_rule,
        keep_rules=family.keep_rules,
        limits=limits,
    )
    adapter = Adapter(
        template=template,
        normalize_query=family.normalize_query,
        by_sentence=family.by_sentence,
        mean_of_pieces=family.mean_of_pieces,
    )
    return Engine(tokenizer, scorer, SentenceSplitter(), info, adapter)


def _template(checkpoint: Checkpoint, tokenizer: FastTokenizer) -> PairTemplate:
    """The family's own packing, else the tokenizer file's, else the encoder's stock one."""
    single = checkpoint.family.single_separator
    stock = None if single else tokenizer.stock_pair()
    if stock is not None:
        return stock
    cls_id, sep_id = tokenizer.cls_id, tokenizer.sep_id
    double = checkpoint.layout.encoder.double_separator and not single
    return PairTemplate((cls_id,), (sep_id,) * (1 + double), (sep_id,))
