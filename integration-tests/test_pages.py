"""Every Python block of the READMEs and the docs runs as it is printed."""

import json
import re
import subprocess
import sys
from pathlib import Path

from vqx.testing import MethodLaws

ROOT = Path(__file__).parent.parent
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("packages/*/README.md")])
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)

RUNNER = """
import functools, json, sys, warnings
import vqx
from vqx.host import embedded

embedded.load_embedded = functools.cache(embedded.load_embedded)
warnings.simplefilter("error")
for page, code in json.load(sys.stdin):
    print("running", page, flush=True)
    model, _ = embedded.load_embedded()
    vqx.detach(model)
    model.__dict__.pop("make_cache", None)
    exec(compile(code, page, "exec"), {"__name__": "page"})
print("all ran")
"""


def test_every_python_block_runs(tmp_path: Path) -> None:
    code = [(str(page.relative_to(ROOT)), "\n".join(BLOCK.findall(page.read_text()))) for page in PAGES]
    code = [(page, text) for page, text in code if text]
    assert len(code) >= 7, "the pages lost their examples"
    ran = subprocess.run(
        [sys.executable, "-c", RUNNER],
        input=json.dumps(code),
        capture_output=True,
        text=True,
        timeout=900,
        cwd=tmp_path,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "all ran" in ran.stdout


def test_every_law_is_explained() -> None:
    page = (ROOT / "docs" / "testing.md").read_text()
    laws = {name.removeprefix("test_") for name in dir(MethodLaws) if name.startswith("test_")}
    table = page.partition("law (`test_…`)")[2].partition("\n\n")[0]
    assert laws == set(re.findall(r"^\| `([a-z_0-9]+)`", table, re.MULTILINE))
