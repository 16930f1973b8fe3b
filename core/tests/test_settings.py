"""Methods with their options, as they are written on a command line."""

import pytest
from vqx import Setting
from vqx.settings import label, settings

H2O = Setting("h2o", {"decay": 0.98, "recent": 32})
SPANS = Setting("protect(ada(h2o))", {"spans": ((0, 64), (70, 80)), "keep": "share"})


@pytest.mark.parametrize(
    ("texts", "found"),
    [
        (["h2o"], [Setting("h2o", {})]),
        (["h2o:decay=0.98,recent=32"], [H2O]),
        (["h2o,tova", "snapkv"], [Setting(name, {}) for name in ("h2o", "tova", "snapkv")]),
        (["tova,h2o:decay=0.98,recent=32"], [Setting("tova", {}), H2O]),
        (["h2o:normalise=none", "h2o:normalise=none"], [Setting("h2o", {"normalise": None})]),
        (["protect(ada(h2o)):spans=((0,64),(70,80)),keep=share"], [SPANS]),
        (["tova protect(ada(h2o)):spans=((0, 64), (70, 80)),keep=share,h2o"], ["tova", SPANS, "h2o"]),
    ],
    ids=str,
)
def test_settings_are_read_as_they_are_written(texts: list[str], found: list[Setting | str]) -> None:
    assert settings(texts) == [Setting(one, {}) if isinstance(one, str) else one for one in found]


@pytest.mark.parametrize("setting", [H2O, SPANS, Setting("tova", {})], ids=label)
def test_a_label_reads_as_its_setting(setting: Setting) -> None:
    assert settings([label(setting)]) == [setting]


@pytest.mark.parametrize("text", ["decay=0.98", "h2o:decay", "h2o:=1"])
def test_what_is_no_setting_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="write a method with its options as h2o:decay"):
        settings([text])
