"""Write a choice of tokens into a batch of logits: the part of the job that needs torch."""

from collections.abc import Iterable

import torch

from scripted_engine.playback import Playback


def force(logits: torch.Tensor, steps: Iterable[tuple[int, int, Playback]]) -> torch.Tensor:
    """Make each step's row of ``logits`` certain of its playback's token, in place.

    A step is (row, position, playback). Rows without a step are untouched, and so is a row
    whose playback leaves the choice to the model. A token that is already masked (``-inf``) is
    replaced by the playback's blank; if that is masked too, the row is left to the model.
    Without requests under a grammar nothing here waits for the device.
    """
    rows: list[int] = []
    tokens: list[int] = []
    blanks: list[int] = []
    for row, position, playback in steps:
        token = _choose(logits[row], position, playback)
        if token is not None:
            rows.append(row)
            tokens.append(token)
            blanks.append(playback.vocabulary.blank)
    if rows:
        index = torch.tensor([rows, tokens, blanks], device=logits.device)
        _overwrite(logits, index[0], index[1], index[2])
    return logits


def _choose(row: torch.Tensor, position: int, playback: Playback) -> int | None:
    if not playback.constrained:
        return playback.token_at(position)
    return playback.constrained_token_at(position, lambda token: bool(row[token] > -torch.inf))


def _overwrite(logits: torch.Tensor, rows: torch.Tensor, tokens: torch.Tensor, blanks: torch.Tensor) -> None:
    tokens = torch.where(logits[rows, tokens] > -torch.inf, tokens, blanks)
    hopeless = torch.isneginf(logits[rows, tokens])
    certain = torch.full_like(logits[rows], -torch.inf)
    certain.scatter_(1, tokens.unsqueeze(1), 0.0)
    logits[rows] = torch.where(hopeless.unsqueeze(1), logits[rows], certain)
