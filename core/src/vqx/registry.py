"""Methods found by name: entry points of the group ``vqx.methods``, one plugin loaded at a time.

Listing names imports no plugin, and one broken plugin does not take the others down.
"""

import difflib
from collections.abc import Iterable
from importlib.metadata import EntryPoint, distribution, entry_points
from typing import Any, NamedTuple

import pluggy

from vqx.hookspecs import Hooks
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
        self._manager = pluggy.PluginManager("vqx")
        self._manager.add_hookspecs(Hooks)
        self._loaded: dict[str, MethodSpec] = {}

    def installed(self) -> list[Installed]:
        """Every method's name with its distribution, sorted; no plugin is imported."""
        found = {name: Installed(name, "", "") for name in self._loaded}
        for entry in self._entries():
            dist = entry.dist
            found[entry.name] = Installed(
                entry.name, dist.name if dist else "", dist.version if dist else ""
            )
        return [found[name] for name in sorted(found)]

    def names(self) -> list[str]:
        """Every method's name, sorted; no plugin is imported."""
        return [method.name for method in self.installed()]

    def load(self, name: str) -> MethodSpec:
        """The method of that name; only its plugin is imported.

        Raises:
            UnknownMethod: no plugin brings it; the message says what is installed and what to install.
            PluginError: its plugin is broken, or two distributions bring the name.
        """
        if name in self._loaded:
            return self._loaded[name]
        entries = [entry for entry in self._entries() if entry.name == name]
        if not entries:
            raise UnknownMethod(self._unknown(name))
        if len({entry.dist.name if entry.dist else "" for entry in entries}) > 1:
            both = " and ".join(sorted(entry.dist.name for entry in entries if entry.dist))
            raise PluginError(f"method {name!r} comes from {both}: uninstall one of them")
        self._import(entries[0])
        if name not in self._loaded:
            raise PluginError(f"{_who(entries[0])} declares the method {name!r} and does not bring it")
        return self._loaded[name]

    def register(self, plugin: object) -> list[str]:
        """Register a plugin object by hand (a notebook, a test); the names of its methods.

        ``plugin`` is a module or an instance with ``@vqx.hookimpl`` methods. Registering a name again
        replaces the method registered by hand before.
        """
        self._manager.register(plugin)
        try:
            self._manager.check_pending()
            methods = self._methods(plugin, type(plugin).__name__)
            taken = {entry.name for entry in self._entries()} & {spec.name for spec in methods}
            if taken:
                raise PluginError(
                    f"method {sorted(taken)[0]!r} is already installed as a package: choose another name"
                )
        except Exception:
            self._manager.unregister(plugin)
            raise
        self._loaded.update({spec.name: spec for spec in methods})
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

    def _import(self, entry: EntryPoint) -> None:
        """Import one plugin, check its hooks and its protocol."""
        try:
            plugin = entry.load()
            if not self._manager.is_registered(plugin):
                self._manager.register(plugin)
                self._manager.check_pending()
            methods = self._methods(plugin, _who(entry))
        except PluginError:
            raise
        except Exception as error:
            raise PluginError(
                f"{_who(entry)} could not be loaded by {_ours()}: {type(error).__name__}: {error}"
            ) from error
        self._loaded.update({spec.name: spec for spec in methods})

    def _methods(self, plugin: Any, who: str) -> list[MethodSpec]:
        hook = getattr(plugin, "vqx_methods", None)
        methods = list(hook()) if hook is not None else []
        for spec in methods:
            if spec.protocol != PROTOCOL:
                newer = "vqx" if spec.protocol > PROTOCOL else "the plugin"
                raise PluginError(
                    f"{who} speaks protocol {spec.protocol}, {_ours()} speaks {PROTOCOL}: upgrade {newer}"
                )
        return methods

    def _unknown(self, name: str) -> str:
        names = self.names()
        close = difflib.get_close_matches(name, names, 1)
        meant = f" Did you mean {close[0]!r}?" if close else f" Try: pip install vqx-{name}"
        return f"no method {name!r}; installed: {', '.join(names) or 'none'}.{meant}"


def _who(entry: EntryPoint) -> str:
    return f"{entry.dist.name} {entry.dist.version}" if entry.dist else f"plugin {entry.name!r}"


def _ours() -> str:
    return f"vqx {distribution('vqx').version}"


registry = Registry()
"""The registry behind ``vqx.names``, ``vqx.load`` and ``vqx.register``."""
