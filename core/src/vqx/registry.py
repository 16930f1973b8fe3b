"""Methods found by name: entry points of the group ``vqx.methods``, one plugin loaded at a time.

Listing names imports no plugin, and one broken plugin does not take the others down.
"""

from collections.abc import Iterable
from importlib.metadata import EntryPoint, distribution, entry_points
from typing import NamedTuple

import pluggy

from vqx.hookspecs import Hooks
from vqx.known import hint
from vqx.spec import PROTOCOL, Collapse, MethodSpec

GROUP = "vqx.methods"


class PluginError(RuntimeError):
    """A plugin that is installed and cannot be used."""


class UnknownMethod(ValueError):
    """A method that no installed plugin brings."""


class Installed(NamedTuple):
    """One method by its metadata alone."""

    name: str
    distribution: str  # empty for a method registered by hand
    version: str


class Registry:
    """Names and methods; ``discover=False`` sees only what is registered by hand (for tests)."""

    def __init__(self, *, discover: bool = True) -> None:
        self._discover = discover
        self._manager = _manager()
        self._loaded: dict[str, MethodSpec] = {}
        self._by_hand: dict[str, object] = {}  # a method's name -> the plugin object that brings it

    def installed(self) -> list[Installed]:
        """Every method's name with its distribution, sorted; no plugin is imported.

        A name that two distributions bring stands there twice, and does not load.
        """
        by_hand = [Installed(name, "", "") for name in self._by_hand]
        packaged = [Installed(entry.name, *_origin(entry)) for entry in self._entries()]
        return sorted({*by_hand, *packaged})

    def names(self) -> list[str]:
        """Every method's name, sorted; no plugin is imported."""
        return sorted({method.name for method in self.installed()})

    def load(self, name: str) -> MethodSpec:
        """The method of that name; only its plugin is imported.

        Raises:
            UnknownMethod: no plugin brings it; the message says what is installed and what to install.
            PluginError: its plugin is broken, or two distributions bring the name.
        """
        if name not in self._loaded:
            self._loaded[name] = self._import(self._entry(name))
        return self._loaded[name]

    def register(self, plugin: object) -> list[str]:
        """Register a plugin object by hand (a notebook, a test); the names of its methods.

        ``plugin`` is a module or an instance with ``@vqx.hookimpl`` methods. Registering a name again
        replaces the method registered by hand before.

        Raises:
            PluginError: the plugin is broken, or one of its names is installed as a package.
        """
        methods = _methods(plugin, _name(plugin))
        taken = {entry.name for entry in self._entries()} & {spec.name for spec in methods}
        if taken:
            raise PluginError(f"method {min(taken)!r} is already installed as a package: choose another name")
        before = list(self._by_hand.values())
        self._by_hand.update({spec.name: plugin for spec in methods})
        self._loaded.update({spec.name: spec for spec in methods})
        for old in before:
            if old not in self._by_hand.values() and self._manager.is_registered(old):
                self._manager.unregister(old)
        self._keep(plugin)
        return [spec.name for spec in methods]

    def collapses(self) -> list[Collapse]:
        """What the plugins loaded so far, and all that load without error, declare equal."""
        for name in self.names():
            try:
                self.load(name)
            except PluginError:
                continue
        declared: list[Iterable[Collapse]] = self._manager.hook.vqx_collapses()
        return [collapse for several in declared for collapse in several]

    def _entries(self) -> list[EntryPoint]:
        return list(entry_points(group=GROUP)) if self._discover else []

    def _entry(self, name: str) -> EntryPoint:
        """The one entry point of that name."""
        entries = [entry for entry in self._entries() if entry.name == name]
        if not entries:
            raise UnknownMethod(self._unknown(name))
        owners = sorted({_origin(entry)[0] for entry in entries})
        if len(owners) > 1:
            raise PluginError(f"method {name!r} comes from {' and '.join(owners)}: uninstall one of them")
        return entries[0]

    def _import(self, entry: EntryPoint) -> MethodSpec:
        """Import one plugin and check it; the method of its entry point."""
        who = " ".join(_origin(entry))
        try:
            plugin = entry.load()
        except Exception as error:
            raise PluginError(_broken(who, error)) from error
        methods = {spec.name: spec for spec in _methods(plugin, who)}
        if entry.name not in methods:
            brings = ", ".join(map(repr, methods)) or "none"
            raise PluginError(f"{who} declares the method {entry.name!r} and brings {brings}")
        self._keep(plugin)
        return methods[entry.name]

    def _keep(self, plugin: object) -> None:
        """Let the plugin's hooks be called from now on; its old ones, if it was reloaded, no longer."""
        if self._manager.is_registered(plugin):
            self._manager.unregister(plugin)
        self._manager.register(plugin, name=f"{_name(plugin)} at {id(plugin)}")

    def _unknown(self, name: str) -> str:
        names = self.names()
        return f"no method {name!r}; installed: {', '.join(names) or 'none'}. {hint(name, names, 'methods')}"


def _manager() -> pluggy.PluginManager:
    manager = pluggy.PluginManager("vqx")
    manager.add_hookspecs(Hooks)
    return manager


def _methods(plugin: object, who: str) -> list[MethodSpec]:
    """Check the plugin's hooks and protocol in a manager of its own, so that nothing broken stays."""
    trial = _manager()
    try:
        trial.register(plugin)
        trial.check_pending()
        methods = [spec for several in trial.hook.vqx_methods() for spec in several]
        protocols = {spec.protocol for spec in methods}
    except Exception as error:
        raise PluginError(_broken(who, error)) from error
    for name in (name for name in vars(Hooks) if hasattr(plugin, name) and name.startswith("vqx_")):
        if not getattr(trial.hook, name).get_hookimpls():
            raise PluginError(f"{who} has a {name} without @vqx.hookimpl, which would never be called")
    for protocol in protocols - {PROTOCOL}:
        old = "vqx" if protocol > PROTOCOL else "the plugin"
        raise PluginError(f"{who} speaks protocol {protocol}, {_ours()} speaks {PROTOCOL}: upgrade {old}")
    return methods


def _broken(who: str, error: Exception) -> str:
    return f"{who} could not be loaded by {_ours()}: {type(error).__name__}: {error}"


def _name(plugin: object) -> str:
    return str(getattr(plugin, "__name__", type(plugin).__name__))


def _origin(entry: EntryPoint) -> tuple[str, str]:
    """The distribution of an entry point and its version."""
    return (entry.dist.name, entry.dist.version) if entry.dist else (entry.value, "")


def _ours() -> str:
    return f"vqx {distribution('vqx').version}"


registry = Registry()
"""The registry behind ``vqx.names``, ``vqx.load`` and ``vqx.register``."""
