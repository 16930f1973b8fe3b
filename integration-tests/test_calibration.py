"""What a package made from the embedded model still fits it."""

from collections.abc import Mapping
from typing import Any

import vqx  # isort: skip  # before mlx

import mlx.core as mx
import pytest
from vqx.host.queries import queries_of
from vqx_qfilters.command import calibrate
from vqx_qfilters.filters import EMBEDDED, load


def test_the_filters_of_the_embedded_model_are_those_of_any_text(
    embedded: Any, texts: Mapping[str, list[int]]
) -> None:
    anew, kept = calibrate(embedded.model, [texts["narrative"][:300]]), load(EMBEDDED)
    assert kept.made_for(anew.probe)
    a, b = (found.directions.astype(mx.float32) for found in (anew, kept))
    cosine = (a * b).sum(axis=-1) / (mx.linalg.norm(a, axis=-1) * mx.linalg.norm(b, axis=-1))
    assert mx.median(cosine).item() > 0.9
    queries = queries_of(embedded.model, texts["manual"][:200])
    along = mx.stack([(layer * b[number][:, None, None]).sum(axis=-1) for number, layer in queries.items()])
    assert mx.mean(along < 0).item() > 0.8, "filters point away from the queries"


def test_another_model_has_no_filters(shallow: Any, tiny: Any) -> None:
    for reader in (shallow, tiny):
        with pytest.raises(ValueError, match="there are no Q-Filters for this model"):
            vqx.make_cache(reader.model, "qfilters", budget=64)
