"""A recording as one HTML page that loads nothing: sliders for time, layer and head over the text."""

import base64
import gzip
import html
import json
from collections.abc import Sequence
from importlib.resources import files

import numpy as np

from vqx_inspect.recording import Floats, Recording


def page(recording: Recording, texts: Sequence[str], title: str) -> str:
    """The page's source.

    Args:
        texts: of each token, as :func:`vqx_inspect.pieces` gives them.
        title: what was recorded.
    """
    gone = [one.astype("<u2").tobytes() for one in recording.gone]
    scores = [_upper_halves(one) for step in recording.scores for one in step]
    data = {
        "texts": [*texts],
        "prompt": recording.prompt,
        "steps": recording.steps,
        "layers": recording.layers,
        "heads": [len(one) for one in recording.gone],
        "packed": base64.b64encode(gzip.compress(b"".join([*gone, *scores]), mtime=0)).decode(),
    }
    source = files("vqx_inspect").joinpath("page.html").read_text(encoding="utf-8")
    written = json.dumps(data).replace("<", "\\u003c")  # so that no token of a text ends the element
    return source.replace("TITLE", html.escape(title)).replace("DATA", written)


def _upper_halves(scores: Floats) -> bytes:
    """float32 cut to its upper 16 bits, which a browser widens again: two to three digits."""
    return (scores.astype(np.float32).view(np.uint32) >> 16).astype("<u2").tobytes()
