"""Discovery: fake distributions are folders on sys.path with a module and its metadata."""

import importlib
import subprocess
import sys
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from types import ModuleType

import pytest
import vqx
from vqx.registry import Installed, PluginError, Registry, UnknownMethod

OURS = f"vqx {version('vqx')}"

GOOD = """
import vqx

@vqx.hookimpl
def vqx_methods():
    return [vqx.MethodSpec(name="{0}", summary="from {0}", paper="none", config=object, build=list)]

@vqx.hookimpl
def vqx_collapses():
    return [vqx.Collapse(vqx.Setting("{0}", {{}}), vqx.Setting("full", {{}}))]
"""

THIEF = """
import vqx

@vqx.hookimpl
def vqx_methods():
    names = ("{0}", "oak")
    return [vqx.MethodSpec(name=name, summary="stolen", paper="", config=int, build=list) for name in names]
"""


class Shelf:
    """A folder on sys.path to which distributions are added."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def add(self, method: str, code: str = GOOD, *, dist: str = "", number: str = "1.0") -> str:
        """Add a distribution that declares ``method``; the name of its module."""
        dist = dist or f"vqx-{method}"
        module = dist.replace("-", "_")
        (self.folder / f"{module}.py").write_text(code.format(method))
        info = self.folder / f"{module}-{number}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {dist}\nVersion: {number}\n")
        (info / "entry_points.txt").write_text(f"[vqx.methods]\n{method} = {module}\n")
        return module


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shelf]:
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Shelf(tmp_path)
    for name in set(sys.modules) - before:
        if str(getattr(sys.modules[name], "__file__", "")).startswith(str(tmp_path)):
            del sys.modules[name]


def by_hand(method: str, summary: str = "by hand") -> ModuleType:
    """A plugin as a notebook would write it."""
    plugin = ModuleType("notebook")

    @vqx.hookimpl
    def vqx_methods() -> list[vqx.MethodSpec]:
        return [vqx.MethodSpec(name=method, summary=summary, paper="none", config=object, build=list)]

    @vqx.hookimpl
    def vqx_collapses() -> list[vqx.Collapse]:
        return [vqx.Collapse(vqx.Setting(method, {}), vqx.Setting(method, {"summary": summary}))]

    vars(plugin).update(vqx_methods=vqx_methods, vqx_collapses=vqx_collapses)
    return plugin


def test_names_come_without_importing_any_plugin(shelf: Shelf) -> None:
    module = shelf.add("oak")
    registry = Registry()
    assert "oak" in registry.names()
    assert Installed("oak", "vqx-oak", "1.0") in registry.installed()
    assert module not in sys.modules


def test_loading_a_method_imports_its_plugin_alone(shelf: Shelf) -> None:
    oak, elm = shelf.add("oak"), shelf.add("elm")
    assert Registry().load("oak").summary == "from oak"
    assert oak in sys.modules
    assert elm not in sys.modules


def test_a_package_installed_later_is_found_without_a_restart(shelf: Shelf) -> None:
    registry = Registry()
    assert "oak" not in registry.names()
    shelf.add("oak")
    importlib.invalidate_caches()
    assert registry.load("oak").name == "oak"


def test_an_unknown_name_answers_with_what_is_installed_and_the_line_that_installs_it(shelf: Shelf) -> None:
    shelf.add("oak")
    shelf.add("elm")
    with pytest.raises(UnknownMethod, match=r"no method 'Q_Zz'; installed: .*elm.*oak") as error:
        Registry().load("Q_Zz")
    assert str(error.value).endswith("or try: pip install vqx-q-zz")


def test_an_unknown_name_answers_with_the_nearest_installed_one(shelf: Shelf) -> None:
    shelf.add("mountain-ash")
    with pytest.raises(UnknownMethod, match="Did you mean 'mountain-ash'"):
        Registry().load("mountain_ash")


def test_with_nothing_installed_an_unknown_name_still_answers_with_the_line_that_installs_it() -> None:
    with pytest.raises(UnknownMethod, match=r"installed: none\. .*try: pip install vqx-oak"):
        Registry(discover=False).load("oak")


def test_a_method_that_a_package_of_ours_brings_is_answered_with_that_package() -> None:
    empty = Registry(discover=False)
    with pytest.raises(UnknownMethod, match=r"none\. Try: pip install vqx-l2norm"):
        empty.load("knorm")
    with pytest.raises(UnknownMethod, match=r"Did you mean 'snapkv'\? Try: pip install vqx-snapkv"):
        empty.load("snapvk")


BROKEN = {
    "ModuleNotFoundError: No module named 'not_there'": "import not_there",
    "ImportError: cannot import name 'absent' from 'vqx'": "from vqx import absent",
    "SyntaxError": "def vqx_methods(:",
    "RuntimeError: no licence": "raise RuntimeError('no licence')",
    "PluginValidationError: unknown hook 'vqx_metods'": GOOD.replace("vqx_methods", "vqx_metods"),
    "PluginValidationError: Plugin .*vqx_methods": GOOD.replace("vqx_methods()", "vqx_methods(model)"),
    "TypeError: .*unexpected keyword argument 'colour'": GOOD.replace("paper=", "colour=0, paper="),
    "has a vqx_methods without @vqx.hookimpl": GOOD.replace("@vqx.hookimpl\ndef vqx_m", "def vqx_m"),
    "has a vqx_collapses without @vqx.hookimpl": GOOD.replace("@vqx.hookimpl\ndef vqx_c", "def vqx_c"),
    "declares the method 'yew' and brings none": "",
    "declares the method 'yew' and brings 'ash'": GOOD.replace('name="{0}"', 'name="ash"'),
}


@pytest.mark.parametrize("message", BROKEN)
def test_a_broken_plugin_says_what_is_wrong_whenever_asked_and_the_others_work(
    shelf: Shelf, message: str
) -> None:
    shelf.add("yew", BROKEN[message], number="2.5")
    shelf.add("oak")
    shelf.add("elm")
    registry = Registry()
    assert registry.load("oak").name == "oak"
    for _ in range(2):
        with pytest.raises(PluginError, match=f"^vqx-yew 2.5 .*{message}"):
            registry.load("yew")
    assert registry.load("elm").name == "elm"
    assert {collapse.this.method for collapse in registry.collapses()} >= {"oak", "elm"}
    assert "yew" in registry.names()


@pytest.mark.parametrize("code", ["import not_there", "def vqx_methods(:"])
def test_a_plugin_that_does_not_import_is_told_with_our_version(shelf: Shelf, code: str) -> None:
    shelf.add("yew", code)
    with pytest.raises(PluginError, match=f"could not be loaded by {OURS}: ") as error:
        Registry().load("yew")
    assert error.value.__cause__ is not None


def test_a_plugin_cannot_bring_the_method_of_another_package(shelf: Shelf) -> None:
    shelf.add("oak")
    shelf.add("thief", THIEF)
    registry = Registry()
    registry.load("thief")
    assert registry.load("oak").summary == "from oak"


def test_two_packages_with_one_name_are_refused_and_both_are_named(shelf: Shelf) -> None:
    shelf.add("oak", dist="vqx-oak")
    shelf.add("oak", dist="oak-again")
    shelf.add("elm")
    registry = Registry()
    with pytest.raises(PluginError, match="'oak' comes from oak-again and vqx-oak: uninstall one of them"):
        registry.load("oak")
    assert registry.names().count("oak") == 1
    assert [found.distribution for found in registry.installed() if found.name == "oak"] == [
        "oak-again",
        "vqx-oak",
    ]
    assert registry.load("elm").name == "elm"


@pytest.mark.parametrize(("protocol", "upgrade"), [(99, "vqx"), (0, "the plugin")])
def test_a_plugin_of_another_protocol_is_refused_in_words(shelf: Shelf, protocol: int, upgrade: str) -> None:
    shelf.add("yew", GOOD.replace("paper=", f"protocol={protocol}, paper="))
    registry = Registry()
    words = f"vqx-yew 1.0 speaks protocol {protocol}, {OURS} speaks 1: upgrade {upgrade}"
    with pytest.raises(PluginError, match=words):
        registry.load("yew")
    assert "yew" not in [collapse.this.method for collapse in registry.collapses()]


def test_a_method_registered_by_hand_is_named_and_loaded_like_any_other() -> None:
    registry = Registry(discover=False)
    assert registry.register(by_hand("oak")) == ["oak"]
    assert registry.names() == ["oak"]
    assert registry.installed() == [Installed("oak", "", "")]
    assert registry.load("oak").summary == "by hand"


def test_a_registry_without_discovery_sees_no_package(shelf: Shelf) -> None:
    shelf.add("oak")
    assert Registry(discover=False).names() == []


def test_registering_a_name_that_is_installed_is_refused(shelf: Shelf) -> None:
    shelf.add("oak")
    registry = Registry()
    with pytest.raises(PluginError, match="'oak' is already installed as a package: choose another name"):
        registry.register(by_hand("oak"))
    assert registry.load("oak").summary == "from oak"


def test_registering_again_replaces_the_method_and_what_it_declares_equal() -> None:
    registry = Registry(discover=False)
    registry.register(by_hand("oak", "first"))
    registry.register(by_hand("elm", "kept"))
    registry.register(by_hand("oak", "second"))
    assert registry.load("oak").summary == "second"
    equal = {collapse.that.options["summary"] for collapse in registry.collapses()}
    assert equal == {"second", "kept"}


def test_registering_one_plugin_twice_registers_it_once() -> None:
    registry = Registry(discover=False)
    plugin = by_hand("oak")
    registry.register(plugin)
    registry.register(plugin)
    assert len(registry.collapses()) == 1


def test_a_plugin_that_is_refused_leaves_the_one_before_it() -> None:
    registry = Registry(discover=False)
    registry.register(by_hand("oak"))
    broken = by_hand("oak", "broken")
    vars(broken)["vqx_metods"] = vars(broken)["vqx_methods"]
    with pytest.raises(PluginError, match=r"notebook could not be loaded by .* unknown hook 'vqx_metods'"):
        registry.register(broken)
    assert registry.load("oak").summary == "by hand"
    assert len(registry.collapses()) == 1


NOTEBOOK = """
from dataclasses import dataclass
import mlx.core as mx, mlx_lm, vqx
from mlx_lm.models.llama import Model, ModelArgs

@dataclass(frozen=True, kw_only=True)
class Config:
    budget: int

class Notebook:
    @vqx.hookimpl
    def vqx_methods(self):
        oldest = vqx.Scorer(score=lambda held: 0.0)
        build = lambda config, layers: [vqx.Method(oldest, config.budget)] * len(layers)
        return [vqx.MethodSpec(name="mine", summary="", paper="", config=Config, build=build)]

vqx.register(Notebook())
assert "mine" in vqx.names()
assert vqx.load("mine").config is Config
model = Model(ModelArgs(
    model_type="llama", hidden_size=32, num_hidden_layers=2, intermediate_size=32,
    num_attention_heads=2, num_key_value_heads=1, rms_norm_eps=1e-5, vocab_size=16,
))
caches = vqx.make_cache(model, "mine", budget=5)
for _ in range(3):
    mx.eval(model(mx.array([[1, 2, 3, 4]]), cache=caches))
print([(cache.tokens_seen, cache.tokens_kept) for cache in caches])
"""


def test_a_method_registered_in_a_notebook_builds_caches_that_evict() -> None:
    done = subprocess.run([sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[(12, 5), (12, 5)]"
