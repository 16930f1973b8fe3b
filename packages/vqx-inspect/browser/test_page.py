"""The page in a real browser: sliders, the pointer, the map; it asks nobody for anything."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import vqx
from playwright.sync_api import Page, Request, sync_playwright
from vqx.host.embedded import load_embedded
from vqx_inspect import Recording, page, pieces, record

TEXT = (
    "The code of the harbour office is 47392. Write it on every form, and never on the bill of a boatman. "
    * 3
)
CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


@pytest.fixture(scope="module")
def recorded() -> tuple[Recording, list[str]]:
    model, tokenizer = load_embedded()
    caches = vqx.make_cache(model, "streaming-llm", budget=24)
    found = record(model, caches, tokenizer.encode(TEXT), write=4, chunk=16)
    return found, pieces(tokenizer.decode, found.tokens)


@pytest.fixture(scope="module")
def shown(recorded: tuple[Recording, list[str]], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    file = tmp_path_factory.mktemp("page") / "kept.html"
    file.write_text(page(*recorded, "streaming-llm, 24 rows"), encoding="utf-8")
    asked: list[str] = []
    errors: list[str] = []

    def note(request: Request) -> None:
        asked.append(request.url)

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        view = browser.new_page(viewport={"width": 1000, "height": 800})
        view.on("request", note)
        view.on("pageerror", lambda error: errors.append(str(error)))
        view.on("console", lambda message: errors.append(message.text))
        view.goto(file.as_uri())
        view.wait_for_selector("body[data-ready=yes]")
        yield view
        assert asked == [file.as_uri()]
        assert errors == []
        browser.close()


def _slide(view: Page, name: str, value: int) -> None:
    """Move a slider by its keys, as a reader would."""
    view.focus(f"#{name}")
    view.keyboard.press("Home")
    least = int(view.get_attribute(f"#{name}", "min") or 0)
    for _ in range(value - least):
        view.keyboard.press("ArrowRight")


def _struck(view: Page) -> list[int]:
    return [int(number) for number in json.loads(view.evaluate(
        "JSON.stringify([...document.querySelectorAll('#text .gone')].map((word) => word.dataset.token))"
    ))]  # fmt: skip


def test_struck_through_are_the_tokens_that_no_head_holds(
    shown: Page, recorded: tuple[Recording, list[str]]
) -> None:
    found, texts = recorded
    assert shown.inner_text("#text").split() == "".join(texts).split()
    for step in (0, 3, len(found.steps) - 1):
        _slide(shown, "step", step)
        assert _struck(shown) == np.flatnonzero(found.share(step) == 0).tolist()
        assert f"{found.steps[step]} of {len(texts)} tokens read" in shown.inner_text("#step-said")
    assert _struck(shown), "nothing was evicted"


def test_the_pointer_says_the_score_and_who_holds_it(
    shown: Page, recorded: tuple[Recording, list[str]]
) -> None:
    found, texts = recorded
    last = len(found.steps) - 1
    _slide(shown, "step", last)
    _slide(shown, "layer", -1)
    shown.hover("#text span[data-token='1']")
    assert shown.inner_text("#note").startswith(
        f"token 1, {json.dumps(texts[1])}: held by 90 of 90 heads; safe"
    )
    _slide(shown, "layer", 2)
    _slide(shown, "head", 1)
    assert shown.inner_text("#layer-said") == "layer 2"
    token = len(texts) - 10
    shown.hover(f"#text span[data-token='{token}']")
    score = found.scores[last][2][1, token]
    said = shown.inner_text("#note")
    assert "held by this head" in said
    assert float(said.split("score ")[1].split(",")[0]) == pytest.approx(float(score), rel=0.01)
    rank = 1 + int((found.scores[last][2][1] > score).sum())
    assert f"rank {rank} of 25" in said


def test_a_click_on_the_map_chooses_its_head(shown: Page) -> None:
    box = shown.locator("#map").bounding_box()
    assert box is not None
    shown.locator("#map").click(position={"x": 40, "y": box["height"] * (3 * 7 + 2.5) / 90})
    assert shown.inner_text("#layer-said") == "layer 7"
    assert shown.inner_text("#head-said") == "head 2"


def test_a_screenshot_is_not_blank(shown: Page, tmp_path: Path) -> None:
    _slide(shown, "layer", -1)
    _slide(shown, "head", -1)
    shown.screenshot(path=tmp_path / "shown.png", full_page=True)
    colours = shown.evaluate(
        "new Set([...document.querySelectorAll('#text span')].map((word) => word.style.background)).size"
    )
    assert colours > 1
    assert (tmp_path / "shown.png").stat().st_size > 20_000


@pytest.mark.parametrize("width", [360, 700, 1600])
def test_nothing_stands_beside_the_window_and_the_pointers_words_stay_in_view(
    shown: Page, width: int
) -> None:
    shown.set_viewport_size({"width": width, "height": 400})
    shown.evaluate("scrollTo(0, document.body.scrollHeight)")
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    for name in ("step-said", "note"):
        box = shown.locator(f"#{name}").bounding_box()
        assert box is not None
        assert 0 <= box["x"] <= box["x"] + box["width"] <= width
        assert 0 <= box["y"] <= box["y"] + box["height"] <= 400
