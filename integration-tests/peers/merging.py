"""kvpress's CAMPress, called after each forward on the rows held, with our draws in the place of its own."""

from types import SimpleNamespace
from unittest.mock import patch

import torch
from kvpress import CAMPress, StreamingLLMPress
from official import Forward, Peer, weights


def cam(budget: int, merge_budget: int = 32, prompt: bool = True) -> Peer:
    """Rows that go one at a time behind four sinks, each merged into the next ``merge_budget``.

    Args:
        prompt: attention is gathered from the prompt on; the press itself starts with generation.
    """
    base = StreamingLLMPress(n_sink=4)
    press = CAMPress(base_press=base, target_size=budget, compression_interval=1, merge_budget=merge_budget)
    press.layer_step_counts[0] = 1
    layer, place = SimpleNamespace(layer_idx=0), torch.arange(0)
    rows: list[torch.Tensor] = []
    gathered = torch.zeros(0)

    def peer(forward: Forward) -> torch.Tensor:
        nonlocal gathered, place
        new = forward[1:3]
        rows[:] = [torch.cat(pair, dim=2) for pair in zip(rows, new, strict=True)] if rows else list(new)
        place = torch.cat([place, torch.arange(forward.start, forward.start + forward.length)])
        seen = press._aggregate_attention_per_kv_head(weights(forward, rows[0]), new[0].shape[1]).sum(dim=2)
        if not prompt and not forward.start:
            seen = torch.zeros_like(seen)
        gathered = seen + torch.nn.functional.pad(gathered, (0, seen.shape[2] - gathered.shape[-1]))
        press._running_attn_sum[0] = gathered
        if len(place) > budget:
            thresholds = forward.draws[None, :, place[base.n_sink], None]
            with patch.object(torch, "bernoulli", lambda chance: (thresholds < chance).to(chance.dtype)):
                rows[:] = press.compress(layer, forward.hidden, *rows, gathered, {})
            place = torch.cat([place[: base.n_sink], place[base.n_sink + 1 :]])
            gathered = press._running_attn_sum[0]
        return torch.cat(rows, dim=3)[0]

    return peer
