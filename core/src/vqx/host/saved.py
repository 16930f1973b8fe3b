"""Caches in files: mlx-lm's own format and functions, with nothing in a file that could be run.

mlx-lm looks the classes of a file up in ``mlx_lm.models.cache``: what reads ours is put there.
"""

import hashlib
import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx.utils import tree_flatten, tree_unflatten
from mlx_lm.models import cache as theirs

from vqx.build import chain_of
from vqx.fingerprint import fingerprint, same_model
from vqx.host.caches import cache_factory, own_caches
from vqx.host.layers import attention_of, plain_layers
from vqx.host.recipes import known, named_files, versions
from vqx.registry import PluginError
from vqx.state.cache import EvictingCache
from vqx.state.layer import Layer
from vqx.state.reversible import ReversibleCache
from vqx.state.saved import Saved, read

Name: TypeAlias = str | os.PathLike[str]

DIGEST = "vqx-sha256"
"""The word beside a file's arrays by which a change is found."""

_NOT_SAVED = "caches of which tokens can be taken back are not saved: make them with undo=0"
_UNREADABLE = (AttributeError, IndexError, KeyError, PluginError, RuntimeError, TypeError, ValueError)
_now = threading.local()


def save_cache(path: Name, caches: list[Any], metadata: Mapping[str, str] | None = None) -> None:
    """Write caches of ``vqx.make_cache`` to a file, which mlx-lm's ``load_prompt_cache`` can read too.

    Args:
        path: ends in ``.safetensors``.
        metadata: words to store beside.

    Raises:
        ValueError: caches of another make, another ending.
    """
    path = _checked(path)
    evicting = [cache for cache in caches if isinstance(cache, EvictingCache)]
    if any(isinstance(cache, ReversibleCache) for cache in caches):
        raise ValueError(_NOT_SAVED)
    if not evicting:
        raise ValueError("none of these caches evicts: save them by mlx-lm's save_prompt_cache")
    if any(cache.recipe is None for cache in evicting):
        raise ValueError(
            "these caches cannot say how they were made, so no file could bring them back: make them with"
            " vqx.make_cache, and options that are numbers and words"
        )
    leaves: Any = tree_flatten([cache.state for cache in caches])
    arrays = {name: _written(leaf) for name, leaf in leaves}
    theirs.save_prompt_cache(str(path), caches, {**(metadata or {}), DIGEST: _digest(arrays)})


def load_cache(path: Name, model: nn.Module, **files: Name) -> list[Any]:
    """The caches of a file, for the model that they were made for; they go on as if never saved.

    Args:
        path: a file by ``vqx.save_cache``, or by mlx-lm's ``save_prompt_cache``.
        files: the method's options that name a file (``profile``, ``filters``): a cache's file says that
            there was one, and not which.

    Raises:
        ValueError: a file that was cut or changed, that is of another model or another release, or that
            names a method which is not installed.
    """
    path = _checked(path)
    try:
        read_in: Any = mx.load(str(path), format="safetensors", return_metadata=True)
        arrays, metadata = read_in
        told, classes, _ = tree_unflatten([*metadata.items()])
        digest = told.get(DIGEST)
        changed = digest is not None and digest != _digest(arrays)
    except _UNREADABLE as error:
        raise ValueError(f"{path}: this is no whole file of a prompt cache ({error})") from error
    if changed:
        raise ValueError(f"{path}: the file was changed after it was saved: make the cache anew")
    usual = [type(cache).__name__ for cache in own_caches(model)]
    for number in plain_layers(model):
        usual[number] = EvictingCache.__name__
    if classes != usual:
        raise ValueError(f"{path}: the file is of another model: it holds other caches than this one's")
    _now.reading = _Reading(model, files)
    try:
        caches: list[Any] = theirs.load_prompt_cache(str(path))
    except _UNREADABLE as error:
        raise ValueError(f"{path}: {error}") from error
    finally:
        _now.reading = None
    numbers = [cache.number for cache in caches if isinstance(cache, EvictingCache)]
    if numbers != plain_layers(model):
        raise ValueError(f"{path}: layers are missing or stand in another order: make the cache anew")
    return caches


class _Reading:
    """The caches of one file: made by their recipe at the first, filled one by one.

    Args:
        model: None: the one that ``vqx`` has made caches for in this process and that fits.
    """

    def __init__(self, model: nn.Module | None, files: Mapping[str, Name]) -> None:
        self.model, self.files = model, files
        self.made: Mapping[str, Any] = {}
        self.waiting: dict[Any, tuple[EvictingCache, Layer]] = {}

    def awaits(self, saved: Saved) -> bool:
        """Whether a layer of this number, made in the same way, is not there yet."""
        return self.made == saved.made and saved.facts.get("number") in self.waiting

    def restored(self, saved: Saved) -> EvictingCache:
        if not self.made:
            self._begin(saved)
        if not self.awaits(saved):
            raise ValueError("its layers were made in several ways, or stand there twice: make it anew")
        cache, like = self.waiting.pop(saved.facts["number"])
        cache.restore(saved, like)
        return cache

    def _begin(self, saved: Saved) -> None:
        made, found = saved.made, self.model
        if found is None:
            found = next((model for model in known() if _made_for(model, saved)), None)
            if found is None:
                raise ValueError(
                    "vqx made no caches in this process for the model that this one was saved with: read it"
                    " by vqx.load_cache(path, model)"
                )
        elif not _made_for(found, saved):
            raise ValueError(f"the cache was saved with another model ({made.get('model')})")
        method, options, files = (made.get(part) for part in ("method", "options", "files"))
        if not (isinstance(method, str) and isinstance(options, dict) and isinstance(files, list)):
            raise ValueError("how the cache was made is not said: make it anew")
        chain = chain_of(method)
        if made.get("versions") != versions(chain):
            raise ValueError(
                f"the cache was saved with releases {made.get('versions')}, and these are {versions(chain)}:"
                " what they keep may differ, so make it anew"
            )
        if set(files) != set(self.files) or not set(files) <= named_files(chain):
            raise ValueError(
                f"{method} was made with {', '.join(f'{name}=FILE' for name in files) or 'no files'}: say so"
                " to vqx.load_cache, and nothing else"
            )
        if any(options.get(name) is not None for name in named_files(chain)):
            raise ValueError("the cache names a file to open, which none may: make it anew")
        try:
            given: dict[str, Any] = {**options, **self.files}
            fresh = cache_factory(found, method, **given)
        except TypeError as error:
            raise ValueError(f"{method} cannot be made with {options}: {error}") from error
        empty, tried = fresh(), fresh()
        found(mx.ones((1, 2), mx.int32), cache=tried)
        self.made = made
        self.waiting = {
            cache.number: (cache, other.layer)
            for cache, other in zip(empty, tried, strict=True)
            if isinstance(cache, EvictingCache)
        }


class EvictingCaches:
    """What mlx-lm finds under the name of our cache's class, and asks for one from what was saved."""

    @staticmethod
    def from_state(state: Any) -> EvictingCache:
        """The cache, for the model that ``load_cache`` was given or that caches were made for before.

        Raises:
            ValueError: as ``load_cache``.
        """
        saved = read(state)
        reading = getattr(_now, "reading", None)
        if reading is None or (reading.model is None and not reading.awaits(saved)):
            reading = _Reading(None, {})
        cache = reading.restored(saved)
        if reading.model is None:
            _now.reading = reading if reading.waiting else None
        return cache


class ReversibleCaches:
    """What mlx-lm finds under the name of our other cache's class."""

    @staticmethod
    def from_state(state: Any) -> ReversibleCache:
        raise ValueError(_NOT_SAVED)


def _made_for(model: nn.Module, saved: Saved) -> bool:
    layers = plain_layers(model)
    if (saved.made.get("model"), saved.made.get("layers")) != (type(model).__module__, layers):
        return False
    own = fingerprint([attention_of(model, number) for number in layers], instead=True)
    return same_model(saved.arrays.get("fingerprint"), own)


def _checked(path: Name) -> Path:
    path = Path(path)
    if path.suffix != ".safetensors":
        raise ValueError(f"{path}: the name of a cache's file ends in .safetensors")
    return path


def _written(leaf: Any) -> mx.array:
    """A number, a word or None as mlx-lm writes it."""
    if isinstance(leaf, mx.array):
        return leaf
    if isinstance(leaf, str):
        return mx.array([ord(letter) for letter in leaf])
    return mx.array([] if leaf is None else leaf)


def _digest(arrays: Mapping[str, mx.array]) -> str:
    total = hashlib.sha256()
    for name, array in sorted(arrays.items()):
        total.update(json.dumps([name, str(array.dtype), array.shape]).encode())
        if array.size:
            total.update(np.array(array.reshape(-1).view(mx.uint8)).tobytes())
    return total.hexdigest()


setattr(theirs, EvictingCache.__name__, EvictingCaches)
setattr(theirs, ReversibleCache.__name__, ReversibleCaches)
