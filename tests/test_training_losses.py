"""Every loss equals its plain form, written with loops."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from secateur.training.losses.candidates import candidates_loss
from secateur.training.losses.listwise import listwise_loss
from secateur.training.losses.score import score_loss
from secateur.training.losses.sentence import sentence_loss
from secateur.training.losses.teacher_margin import teacher_margin_loss
from secateur.training.losses.teacher_score import teacher_score_loss
from secateur.training.losses.token import token_loss

OWNER = torch.tensor([0, 0, 1, 1, 1, 2, 3, 3, 4])
TARGETS = torch.tensor([1.0, 0.0, 0.3, 0.0, 1.0])
PASSAGE = torch.tensor([0, 0, 0, 1, 1])
NAN = float("nan")


def margins() -> torch.Tensor:
    return torch.randn(9, generator=torch.Generator().manual_seed(0))


def test_token_loss() -> None:
    x = margins()
    plain = [functional.binary_cross_entropy_with_logits(x[t], TARGETS[OWNER[t]]) for t in range(9)]
    assert token_loss(x, OWNER, TARGETS) == pytest.approx(torch.stack(plain).mean())


def test_sentence_loss() -> None:
    x = margins()
    total, weights = 0.0, 0.0
    for s, target in enumerate(TARGETS.tolist()):
        p = float(x[s == OWNER].sigmoid().mean())
        weight = 1 + 2 * target  # from 1 to 3
        cross_entropy = -target * torch.tensor(p).log() - (1 - target) * torch.tensor(1 - p).log()
        total += weight * float(cross_entropy)
        weights += weight
    assert sentence_loss(x, OWNER, TARGETS, 3.0) == pytest.approx(total / weights)


def test_listwise_loss() -> None:
    x = margins()
    means = torch.stack([x[s == OWNER].mean() for s in range(5)])
    plain = [
        -means[:3].log_softmax(0)[0],  # sentence 2 has a target below 0.5: no positive
        -means[3:].log_softmax(0)[1],
    ]
    expected = torch.stack(plain).mean()
    assert listwise_loss(x, OWNER, TARGETS, PASSAGE) == pytest.approx(expected)


def test_listwise_loss_without_a_positive_is_zero() -> None:
    zero = torch.zeros(2, dtype=torch.long)
    loss = listwise_loss(torch.randn(3), torch.tensor([0, 0, 1]), zero.float(), zero)
    assert float(loss) == 0.0


def test_score_loss() -> None:
    scores, relevant = torch.tensor([2.0, -1.0]), torch.tensor([1.0, 0.0])
    expected = -(torch.tensor(2.0).sigmoid().log() + torch.tensor(1.0).sigmoid().log()) / 2
    assert score_loss(scores, relevant) == pytest.approx(expected)


def test_candidates_loss_is_over_questions_with_a_choice() -> None:
    scores = torch.tensor([1.0, 0.5, -1.0, 3.0, 0.0, 0.2], requires_grad=True)
    relevant = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0])
    question = torch.tensor([0, 0, 0, 1, 2, 2])  # 1 is alone, 2 has no relevant one
    share = scores[:3].log_softmax(0)
    loss = candidates_loss(scores, relevant, question)
    assert loss.item() == pytest.approx(-(share[0] + share[1]).item() / 2)
    loss.backward()
    assert scores.grad is not None
    assert scores.grad[3:].tolist() == [0.0, 0.0, 0.0]


def test_teacher_losses_skip_rows_without_a_teacher() -> None:
    scores = torch.tensor([1.0, 3.0, 0.0, 2.0])
    teacher = torch.tensor([2.0, 1.0, NAN, 5.0])
    question = torch.tensor([0, 0, 0, 1])
    assert float(teacher_score_loss(scores, teacher)) == pytest.approx((1 + 4 + 9) / 3)
    # The only pair: (1 - 3) against (2 - 1), in both orders.
    assert float(teacher_margin_loss(scores, teacher, question)) == pytest.approx(9.0)
    nothing = torch.full((4,), NAN)
    assert float(teacher_score_loss(scores, nothing)) == 0.0
    assert float(teacher_margin_loss(scores, nothing, question)) == 0.0
