"""`${NAME}` in env values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.config.interpolate import expand, looks_secret, referenced_names, unset_names
from rollout.core.errors import ConfigError

HOST = {"A": "one", "EMPTY": "", "DOLLAR": "${B}$$"}


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("", ""),
        ("plain", "plain"),
        ("${A}", "one"),
        ("x${A}y${A}", "xoneyone"),
        ("${EMPTY}", ""),
        ("${EMPTY:-d}", "d"),
        ("${MISSING:-d}", "d"),
        ("${MISSING:-}", ""),
        ("${MISSING:-a:-b c}", "a:-b c"),
        ("${MISSING:-$$5}", "$5"),
        ("${A:-d}", "one"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$$${A}", "$${A}"),
        ("$$${A}", "$one"),
        ("$A $", "$A $"),
        ("a$b", "a$b"),
        ("${DOLLAR}", "${B}$$"),
    ],
)
def test_references_are_replaced_as_in_a_shell(text: str, expanded: str) -> None:
    assert expand(text, HOST) == expanded


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("ab${", "character 3"),
        ("${A", "closing"),
        ("${}", "not `${NAME}`"),
        ("${A B}", "not `${NAME}`"),
        ("${1A}", "not `${NAME}`"),
        ("${A-x}", "not `${NAME}`"),
        ("${A:?x}", "not `${NAME}`"),
        ("${A:-${B}}", "another brace"),
        ("${Ä}", "not `${NAME}`"),
    ],
)
def test_what_is_no_reference_is_refused_with_its_position(text: str, what: str) -> None:
    for function in (lambda: expand(text, HOST), lambda: referenced_names(text), lambda: unset_names([text], HOST)):
        with pytest.raises(ConfigError) as caught:
            function()
        assert what in str(caught.value)


def test_an_unset_variable_is_named() -> None:
    with pytest.raises(ConfigError, match="MISSING is not set"):
        expand("${A} ${MISSING}", HOST)


def test_no_error_shows_a_value() -> None:
    for text in ("sk-hidden-1 ${MISSING}", "sk-hidden-1 ${", "${A:-sk-hidden-1${B}}", "${sk-hidden-1}"):
        with pytest.raises(ConfigError) as caught:
            expand(text, HOST)
        assert "hidden" not in str(caught.value)


def test_names_come_once_and_in_order() -> None:
    assert referenced_names("${B} ${A:-x} $${C} ${B}") == ["B", "A"]
    assert unset_names(["${Z} ${A}", "${EMPTY} ${Y:-x}", "${Y}${Z}"], HOST) == ["Z", "Y"]


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("OPENAI_API_KEY", True),
        ("token", True),
        ("DB_PASSWORD", True),
        ("PATH", False),
        ("MODEL", False),
        ("password_file", False),
    ],
)
def test_secrets_are_known_by_their_names(name: str, secret: bool) -> None:
    assert looks_secret(name) is secret


@given(st.text(alphabet="${}:-AB_ 1", max_size=40))
def test_any_text_expands_or_is_refused(text: str) -> None:
    try:
        missing = unset_names([text], {"A": "x"})
    except ConfigError:
        with pytest.raises(ConfigError):
            expand(text, {"A": "x"})
        return
    assert expand(text, {"A": "x", **dict.fromkeys(missing, "y")}).count("${") <= text.count("$$")


@given(st.text(max_size=40))
def test_text_with_its_dollars_doubled_comes_back(text: str) -> None:
    assert expand(text.replace("$", "$$"), {}) == text
