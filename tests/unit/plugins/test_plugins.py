"""Finding plugins: whatever is wrong with one of them is said in a line, and breaks nothing but what names it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from distributions import install, install_metric
from rollout.builtin.nop import NopAgent
from rollout.core.errors import ConfigError, PluginError
from rollout.core.plugins import (
    KINDS,
    Plugin,
    PluginInfo,
    decode_options,
    find,
    list_plugins,
    load,
    override,
    problems,
    versions,
)
from rollout.core.protocols import API_VERSION


def names(kind: str) -> list[str]:
    return [info.name for info in list_plugins(kind)]


def test_core_registers_its_own_like_everybody() -> None:
    assert {"oracle", "nop", "script"} <= set(names("agents"))
    assert all(info.dist == "rollout-core" for info in list_plugins("executors"))


def test_listing_says_what_the_metadata_says_and_imports_nothing(site: Path) -> None:
    install_metric(site, "rollout-extra", version="3.1.4")
    listed = [info for info in list_plugins() if info.dist == "rollout-extra"]
    assert listed == [
        PluginInfo(kind="metrics", name="count", dist="rollout-extra", version="3.1.4", target="rollout_extra:Count")
    ]
    assert "rollout_extra" not in sys.modules


def test_an_installed_plugin_is_found_by_its_name(site: Path) -> None:
    install_metric(site, "rollout-extra")
    plugin = find("metrics", "count")
    assert plugin.info.dist == "rollout-extra"
    assert plugin.cls.__name__ == "Count"


def test_versions_are_those_of_the_distributions(site: Path) -> None:
    install_metric(site, "rollout-extra", version="2.0")
    found = versions([find("metrics", "count"), find("agents", "nop"), find("agents", "oracle")])
    assert found["rollout-extra"] == "2.0"
    assert set(found) == {"rollout-core", "rollout-extra"}


def test_an_unknown_name_says_what_there_is() -> None:
    with pytest.raises(PluginError, match=r"no agent 'orcale' is installed \(did you mean 'oracle'\?\); installed: .*nop"):
        find("agents", "orcale")


@pytest.mark.parametrize(
    ("kind", "name", "distribution"),
    [
        ("environments", "docker", "rollout-docker"),
        ("environments", "ssh", "rollout-ssh"),
        ("environments", "apptainer", "rollout-apptainer"),
        ("agents", "codex", "rollout-agents"),
        ("agents", "Claude_Code", "rollout-agents"),
    ],
)
def test_a_name_that_is_known_but_not_installed_says_how_to_get_it(
    kind: str, name: str, distribution: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROLLOUT_PLUGINS", "")
    with pytest.raises(PluginError, match=f"`pip install {distribution}` brings it|{distribution} has it") as refused:
        find(kind, name)
    assert "did you mean" not in str(refused.value)


def test_an_unknown_kind_is_refused() -> None:
    for ask in (lambda: find("agent", "nop"), lambda: list_plugins("agent")):
        with pytest.raises(PluginError, match="did you mean 'agents'"):
            ask()


class TestTwoOfOneName:
    @pytest.fixture(autouse=True)
    def _two(self, site: Path) -> None:
        install_metric(site, "rollout-one")
        install_metric(site, "rollout-two", version="2.0")

    def test_is_an_error_that_names_both_and_imports_neither(self) -> None:
        with pytest.raises(PluginError) as caught:
            find("metrics", "count")
        assert "rollout-one 0.1.0" in str(caught.value)
        assert "rollout-two 2.0" in str(caught.value)
        assert "rollout-two:count" in str(caught.value)
        assert not {"rollout_one", "rollout_two"} & set(sys.modules)

    def test_is_resolved_by_the_distribution_and_imports_only_that(self) -> None:
        assert find("metrics", "rollout-two:count").info.version == "2.0"
        assert find("metrics", "Rollout_Two:count").info.version == "2.0"
        assert "rollout_one" not in sys.modules

    def test_is_resolved_by_leaving_one_out(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("ROLLOUT_PLUGINS", "rollout-two")
        assert find("metrics", "count").info.dist == "rollout-two"

    def test_each_can_be_loaded_from_the_list(self) -> None:
        both = [info for info in list_plugins("metrics") if info.name == "count"]
        assert [load(info).info.dist for info in both] == ["rollout-one", "rollout-two"]

    def test_the_others_are_not_touched(self) -> None:
        assert find("metrics", "mean").info.dist == "rollout-core"


class TestAllowList:
    def test_empty_leaves_only_core(self, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install_metric(site, "rollout-extra")
        monkeypatch.setenv("ROLLOUT_PLUGINS", "")
        assert {info.dist for info in list_plugins()} == {"rollout-core"}
        with pytest.raises(PluginError, match="rollout-extra has it, and ROLLOUT_PLUGINS leaves that out"):
            find("metrics", "count")

    @pytest.mark.parametrize("value", ["rollout-extra", "Rollout_Extra", "other, rollout.extra", "other rollout-extra"])
    def test_names_distributions_however_they_are_spelt(self, value: str, site: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        install_metric(site, "rollout-extra")
        monkeypatch.setenv("ROLLOUT_PLUGINS", value)
        assert "count" in names("metrics")


class TestBroken:
    """A plugin that is broken breaks what names it, with one line that names it."""

    @pytest.mark.parametrize(
        ("source", "says"),
        [
            ("import no_such_module_here", "ModuleNotFoundError: No module named 'no_such_module_here'"),
            ("import sys\nsys.exit('bye')", "SystemExit: bye"),
            ("raise BaseException('base')", "BaseException: base"),
            ("raise AssertionError('assert')", "AssertionError: assert"),
            ("raise RuntimeError('line one\\nline two')", "RuntimeError: line one line two"),
            ("def broken(:", "SyntaxError"),
            ("x = 1", "AttributeError: module 'rollout_bad' has no attribute 'Count'"),
            ("raise ExceptionGroup('several', [ValueError('a')])", "ExceptionGroup: several"),
            ("import asyncio\nraise asyncio.CancelledError", "CancelledError"),
        ],
    )
    def test_import_is_a_plugin_error(self, source: str, says: str, site: Path) -> None:
        install(site, "rollout-bad", {"rollout.metrics": {"bad": "rollout_bad:Count"}}, modules={"rollout_bad": source})
        assert "bad" in names("metrics")
        with pytest.raises(PluginError) as caught:
            find("metrics", "bad")
        text = str(caught.value)
        assert text.startswith("metric 'bad' (rollout_bad:Count from rollout-bad 0.1.0) cannot be imported: ")
        assert says in text
        assert "\n" not in text
        assert find("metrics", "mean").info.dist == "rollout-core"

    def test_an_interrupt_while_importing_is_an_interrupt(self, site: Path) -> None:
        install(
            site, "rollout-bad", {"rollout.metrics": {"bad": "rollout_bad:X"}}, modules={"rollout_bad": "raise KeyboardInterrupt"}
        )
        with pytest.raises(KeyboardInterrupt):
            find("metrics", "bad")

    @pytest.mark.parametrize(
        "target", ["not a target", "rollout_bad:", ":X", "rollout_bad:Count.deeper", "rollout_bad.nothing:X"]
    )
    def test_target_is_a_plugin_error(self, target: str, site: Path) -> None:
        install(site, "rollout-bad", {"rollout.metrics": {"bad": target}}, modules={"rollout_bad": "class Count: pass"})
        with pytest.raises(PluginError, match="metric 'bad'"):
            find("metrics", "bad")

    @pytest.mark.parametrize("content", [b"\xff\xfe[rollout.metrics]\nbad = x:y\n", b"[rollout.metrics]\nno equals sign\n"])
    def test_metadata_breaks_that_distribution_alone(self, content: bytes, site: Path) -> None:
        install_metric(site, "rollout-extra")
        info = install(site, "unrelated", {})
        (info / "entry_points.txt").write_bytes(content)
        assert "count" in names("metrics")
        assert find("agents", "nop").info.dist == "rollout-core"
        assert len(problems()) == 1
        assert problems()[0].startswith("unrelated: ")
        with pytest.raises(PluginError, match=r"unrelated: its entry_points\.txt cannot be read"):
            find("metrics", "bad")


class TestContract:
    @pytest.mark.parametrize(
        ("version", "says"),
        [
            ((API_VERSION[0] + 1, 0), "needs plugin API .*; upgrade rollout-core"),
            ((API_VERSION[0], API_VERSION[1] + 1), "needs plugin API .*; upgrade rollout-core"),
            ((API_VERSION[0] - 1, 99), "was written for plugin API .*; upgrade the plugin"),
            ("1.0", "is a pair of numbers"),
            ((1, 0, 0), "is a pair of numbers"),
            ((True, 0), "is a pair of numbers"),
            (None, "has no `api_version`"),
        ],
    )
    def test_another_api_version_says_which_side_to_upgrade(self, version: object, says: str, site: Path) -> None:
        source = repr(version) if not isinstance(version, str) else f"{version!r}"
        install_metric(site, "rollout-extra", api_version=source)
        with pytest.raises(PluginError, match=says):
            find("metrics", "count")

    @pytest.mark.parametrize("kind", ["environments", "agents", "verifiers", "metrics", "registries", "executors"])
    def test_a_class_of_another_kind_is_refused(self, kind: str) -> None:
        class Nothing:
            api_version = API_VERSION
            options_type = NopAgent.options_type

        with pytest.raises(PluginError, match="lacks `"), override(kind, "nothing", Nothing):
            pass

    @pytest.mark.parametrize("thing", [None, 3, "text", sys])
    def test_what_is_no_class_is_refused(self, thing: object) -> None:
        for kind in ("agents", "commands"):
            with pytest.raises(PluginError), override(kind, "nothing", thing):
                pass

    def test_options_type_has_to_be_a_struct(self) -> None:
        with (
            pytest.raises(PluginError, match="options_type"),
            override("agents", "x", type("X", (NopAgent,), {"options_type": dict})),
        ):
            pass

    def test_a_factory_with_the_attributes_will_do(self) -> None:
        def factory(options: Any, context: Any) -> NopAgent:
            return NopAgent(options, context)

        factory.api_version = API_VERSION  # type: ignore[attr-defined]
        factory.options_type = NopAgent.options_type  # type: ignore[attr-defined]
        with override("agents", "made", factory):
            assert find("agents", "made").cls is factory

    @pytest.mark.parametrize("kind", sorted(set(KINDS) - {"hooks"}))
    def test_every_builtin_fulfils_it(self, kind: str) -> None:
        for info in list_plugins(kind):
            if info.dist == "rollout-core":
                assert load(info).info == info


class TestOverride:
    def test_lasts_as_long_as_its_block(self) -> None:
        mine = type("Mine", (NopAgent,), {})
        with override("agents", "nop", mine):
            assert find("agents", "nop").cls is mine
            with override("agents", "nop", NopAgent):
                assert find("agents", "nop").cls is NopAgent
            assert find("agents", "nop").cls is mine
            assert [info.dist for info in list_plugins("agents") if info.name == "nop"] == ["in-process", "rollout-core"]
        assert find("agents", "nop").info.dist == "rollout-core"


class Options(msgspec.Struct, frozen=True, kw_only=True):
    """Without forbid_unknown_fields, as a third party may forget it."""

    model: str
    turns: Annotated[int, msgspec.Meta(ge=1)] = 50
    nested: dict[str, int] = {}
    odd: int = 0

    def __post_init__(self) -> None:
        if self.odd == 13:
            raise RuntimeError("13 brings bad luck")


class TestOptions:
    @pytest.fixture
    def plugin(self) -> Plugin:
        info = PluginInfo(kind="agents", name="aider", dist="rollout-aider", version="0.1.0", target="x:Y")
        return Plugin(info, type("Aider", (NopAgent,), {"options_type": Options}))

    def test_text_that_is_a_number_is_one(self, plugin: Plugin) -> None:
        assert decode_options(plugin, {"model": "m", "turns": "7"}, "agents[0]") == Options(model="m", turns=7)

    @pytest.mark.parametrize(
        ("raw", "says"),
        [
            ({}, "option 'model' is missing"),
            ({"model": "m", "tunrs": 1}, "no option 'tunrs' (did you mean 'turns'?); there are model, turns, nested, odd"),
            ({"model": "m", 3: 1}, "no option 3; there are model, turns, nested, odd"),
            ({"model": 4.1}, "model: expected `str`, got `float`"),
            ({"model": "m", "turns": 0}, "turns: expected `int` >= 1"),
            ({"model": "m", "nested": {"a": "b"}}, "nested[...]: expected `int`, got `str`"),
            ({"model": "m", "odd": 13}, "RuntimeError: 13 brings bad luck"),
        ],
    )
    def test_a_fault_is_one_line_with_its_place(self, plugin: Plugin, raw: dict[Any, Any], says: str) -> None:
        with pytest.raises(ConfigError) as caught:
            decode_options(plugin, raw, "job.yaml: agents[0]")
        assert str(caught.value) == f"job.yaml: agents[0] (aider 0.1.0): {says}"

    def test_a_plugin_without_options_says_so(self) -> None:
        with pytest.raises(ConfigError, match=r"agents\[1\] \(nop .*\): no option 'model'; it has none"):
            decode_options(find("agents", "nop"), {"model": "m"}, "agents[1]")

    @given(
        raw=st.dictionaries(st.text(), st.recursive(st.none() | st.booleans() | st.floats() | st.text(), st.lists), max_size=4)
    )
    def test_whatever_is_given_is_decoded_or_one_line(self, raw: dict[str, Any]) -> None:
        info = PluginInfo(kind="agents", name="aider", dist="rollout-aider", version="0.1.0", target="x:Y")
        plugin = Plugin(info, type("Aider", (NopAgent,), {"options_type": Options}))
        try:
            assert isinstance(decode_options(plugin, raw, "agents[0]"), Options)
        except ConfigError as error:
            assert "\n" not in str(error)


@given(kind=st.sampled_from(sorted(KINDS)), name=st.text(max_size=40))
def test_whatever_a_plugin_is_called_the_answer_is_one_line(kind: str, name: str) -> None:
    try:
        find(kind, name)
    except PluginError as error:
        assert "\n" not in str(error)
