"""Profiles: what each layer of a model loses without its far rows, and the budgets that follow."""

import json
from collections.abc import Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import mlx.core as mx

FORMAT = "vqx-layerwise-1"
EMBEDDED = Path(str(files("vqx_layerwise") / "embedded.json"))
"""The profile of the embedded model (SmolLM2-135M-Instruct); it says how it was made, and from what."""

RECALL = 0.04
"""What a nat of a planted key's digits counts beside a nat of ordinary text."""


class Profile(NamedTuple):
    """What was measured, layer by layer."""

    loss: list[float]  # nats per token of text, above the full cache's
    recall: list[float]  # nats per digit of a planted key, above the full cache's
    fingerprint: mx.array | None  # of the model's query projections; None: it has none
    about: dict[str, Any]

    @property
    def need(self) -> list[float]:
        """Weights of the layers.

        Where a layer's loss falls with the inverse of its rows, the least sum has rows as the root of it.
        """
        both = zip(self.loss, self.recall, strict=True)
        return [float(max(loss + RECALL * max(recall, 0.0), 1e-4) ** 0.5) for loss, recall in both]


def shared_out(need: Sequence[float], mean: int, floor: float) -> list[int]:
    """Whole budgets in proportion to ``need`` above a floor, whose mean is ``mean`` exactly."""
    least, total = floor * mean, mean * len(need)
    exact = [least + (mean - least) * len(need) * part / sum(need) for part in need]
    whole = [int(rows) for rows in exact]
    first = sorted(range(len(need)), key=lambda number: whole[number] - exact[number])
    for number in first[: total - sum(whole)]:
        whole[number] += 1
    return whole


def save(profile: Profile, path: Path) -> None:
    """Write a profile as JSON."""
    mark = None if profile.fingerprint is None else profile.fingerprint.tolist()
    rounded = {name: [round(x, 5) for x in getattr(profile, name)] for name in ("loss", "recall")}
    path.write_text(json.dumps({"format": FORMAT, **profile.about, **rounded, "fingerprint": mark}) + "\n")


def load(path: Path) -> Profile:
    """Read a profile.

    Raises:
        ValueError: no such file, or not a profile.
    """
    try:
        read = json.loads(path.read_text(encoding="utf-8"))
        if read.pop("format") != FORMAT:
            raise ValueError(f"its format is not {FORMAT!r}")
        loss, recall = ([*map(float, read.pop(name))] for name in ("loss", "recall"))
        mark = read.pop("fingerprint")
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"profile={str(path)!r} cannot be read as a profile: {error}") from error
    if len(loss) != len(recall):
        raise ValueError(f"profile={str(path)!r} has {len(loss)} losses and {len(recall)} recalls")
    return Profile(loss, recall, None if mark is None else mx.array(mark), read)
