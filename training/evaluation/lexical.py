"""BM25 of sentences for their question: the line that a model has to stand above."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from secateur.training.bm25 import Bm25
from secateur.training.evaluation.metrics import Bools, Floats, fractions
from secateur.training.evaluation.rows import LabelledRow


def question_bm25(rows: Sequence[LabelledRow]) -> Floats:
    """BM25 of every sentence: float64 [sentences]; the collection is all of its question's."""
    by_question: dict[str, list[int]] = defaultdict(list)
    for index, row in enumerate(rows):
        by_question[row.question].append(index)
    scores: dict[int, Floats] = {}
    for question, group in by_question.items():
        texts = [[rows[i].text(s) for s in range(len(rows[i].sentences))] for i in group]
        flat = Bm25([text for row_texts in texts for text in row_texts]).scores(question)
        borders = np.cumsum([len(row_texts) for row_texts in texts])[:-1]
        scores.update(zip(group, np.split(flat, borders), strict=True))
    return np.concatenate([scores[index] for index in range(len(rows))])


def best_cut(scores: Floats, labels: Bools) -> float:
    """The score s for which keeping all that score >= s has the highest micro F1.

    Ties go to the higher s, which keeps less. scores, labels: [sentences].
    """
    order = np.argsort(-scores, kind="stable")
    hits = np.cumsum(labels[order], dtype=np.int64)
    kept = np.arange(1, len(scores) + 1)
    f1 = fractions(hits, kept - hits, hits[-1] - hits)[2]
    # Sentences with equal scores go together: only the last of a run is a cut.
    is_cut = np.append(np.diff(scores[order]) != 0, True)
    return float(scores[order][int(np.argmax(np.where(is_cut, f1, -1.0)))])
