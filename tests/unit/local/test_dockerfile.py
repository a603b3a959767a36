"""Reading Dockerfiles: lines, words, variables, `.dockerignore`."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rollout.core.dockerfile import expand, split_words
from rollout.core.errors import TaskError
from rollout.core.sandbox.ignore import IgnoreRules, compile_glob
from rollout.core.sandbox.recipe import Recipe, parse, read_dockerfile

PATH = Path("/task/environment/Dockerfile")


def recipe(text: str) -> Recipe:
    return parse(text, PATH)


def steps(text: str) -> list[tuple[int, str, str]]:
    return [(step.line, step.name, step.text) for step in recipe("FROM x\n" + text).steps]


def test_instructions_have_their_line_whatever_their_case() -> None:
    assert steps("\n# comment\nrun a\n  Env  B=1  \n") == [(4, "RUN", "a"), (5, "ENV", "B=1")]


def test_continued_lines_are_joined_without_comments_and_blank_lines() -> None:
    assert steps("RUN a && \\\n  # a comment\n\n  b \\\n  && c\nRUN d") == [(2, "RUN", "a &&   b   && c"), (7, "RUN", "d")]


def test_the_escape_character_can_be_changed() -> None:
    assert steps_of("# escape=`\nFROM x\nRUN a `\n b\\\n") == ["a  b\\"]


def steps_of(text: str) -> list[str]:
    return [step.text for step in recipe(text).steps]


def test_windows_line_ends_and_a_byte_order_mark_are_read(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes("\ufeffFROM x\r\nRUN a \\\r\n b\r\n".encode())
    assert [step.text for step in read_dockerfile(tmp_path / "Dockerfile").steps] == ["a  b"]


def test_json_and_shell_forms() -> None:
    found = recipe('FROM x\nRUN ["a", "b c"]\nRUN [ -f /x ] && y\nCOPY ["a b", "/c/"]\n').steps
    assert [step.words for step in found] == [["a", "b c"], None, ["a b", "/c/"]]


def test_flags_are_apart() -> None:
    step = recipe("FROM x\nCOPY --chown=a:b --chmod=755 src dst\n").steps[0]
    assert (step.flags, step.text) == ({"chown": "a:b", "chmod": "755"}, "src dst")


def test_here_documents_belong_to_their_instruction() -> None:
    step, after = recipe("FROM x\nRUN cat <<A <<-'B' > /y\none\n# kept\nA\n\ttwo\n\tB\nRUN z\n").steps
    assert [(document.name, document.expands, document.content) for document in step.heredocs] == [
        ("A", True, "one\n# kept\n"),
        ("B", False, "two\n"),
    ]
    assert (after.line, after.text) == (8, "z")


def test_instructions_without_effect_are_accepted() -> None:
    text = 'LABEL a=b\nEXPOSE 80\nCMD ["x"]\nENTRYPOINT y\nHEALTHCHECK CMD z\nSTOPSIGNAL 9\nMAINTAINER m\n'
    assert steps(text) == []


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("HEALTHCHECK CMD a\n", 2),
        ("HEALTHCHECK CMD a\nRUN b\nHEALTHCHECK --interval=5s CMD c\n", 4),
        ("HEALTHCHECK CMD a\nHEALTHCHECK none\n", None),
    ],
)
def test_a_healthcheck_is_said_to_have_no_effect(text: str, line: int | None) -> None:
    said = recipe(f"FROM x\n{text}").unheard
    assert (said is None) if line is None else (said or "").startswith(f"{PATH}:{line}: HEALTHCHECK has no effect")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "no FROM"),
        ("RUN a\nFROM x\n", ":1: RUN before FROM"),
        ("FROM\n", ":1: FROM names no image"),
        ("FROM x\nFROBNICATE y\n", ":2: unknown instruction FROBNICATE"),
        ("FROM x\nRUN\n", ":2: RUN needs an argument"),
        ("FROM x\nSHELL bash -c\n", ":2: SHELL needs the JSON form"),
        ("FROM x\nRUN <<EOF\nnever closed\n", ":2: the here-document EOF is not closed"),
        ("FROM x AS a\nRUN y\nFROM a\n", ":3: .*multi-stage.*`type: docker`"),
        ("FROM x\nCOPY --from=a b c\n", ":2: .*COPY --from.*`type: docker`"),
        ("FROM x\nCOPY --parents a b\n", ":2: .*COPY --parents.*`type: docker`"),
        ("FROM x\nADD https://a/b c\n", ":2: .*ADD.*`type: docker`"),
        ('FROM x\nADD ["git@a:b.git", "c"]\n', ":2: .*ADD.*`type: docker`"),
        ("FROM x\nRUN --mount=type=secret a\n", ":2: .*RUN --mount.*`type: docker`"),
        ("FROM x\nONBUILD RUN y\n", ":2: ONBUILD.*`type: docker`"),
        ("# escape=x\nFROM x\n", "escape character"),
    ],
)
def test_what_cannot_be_done_names_its_line(text: str, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        recipe(text)


@pytest.mark.parametrize("data", [b"\0binary", b"x" * (1024 * 1024 + 1)])
def test_what_is_not_a_dockerfile_is_an_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_bytes(data)
    with pytest.raises(TaskError, match="not a Dockerfile"):
        read_dockerfile(tmp_path / "Dockerfile")


_lines = st.lists(
    st.one_of(
        st.text(max_size=30),
        st.sampled_from(
            ["FROM x", "RUN a \\", "RUN <<EOF", "EOF", "COPY a b", "# c", "\\", "", "ENV A=${B:-c}", 'RUN ["a"]', "RUN [[["]
        ),
    ),
    max_size=12,
)


@given(lines=_lines)
def test_any_text_is_a_recipe_or_a_task_error(lines: list[str]) -> None:
    try:
        parse("\n".join(lines), PATH)
    except TaskError as error:
        assert str(PATH) in str(error)


VARIABLES = {"A": "1", "EMPTY": "", "PATH": "/bin"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("$A", "1"),
        ("${A}b", "1b"),
        ("$Ab", ""),
        ("x$A.y", "x1.y"),
        ("$MISSING", ""),
        ("${MISSING:-d}", "d"),
        ("${EMPTY:-d}", "d"),
        ("${EMPTY-d}", ""),
        ("${MISSING-d}", "d"),
        ("${A:+set}", "set"),
        ("${EMPTY:+set}", ""),
        ("${EMPTY+set}", "set"),
        ("${MISSING:-${A}}", "1"),
        ('${MISSING:-"a b"}', "a b"),
        ("\\$A", "$A"),
        ("'$A'", "$A"),
        ('"$A"', "1"),
        ('"\\$A \\" \\x"', '$A " \\x'),
        ("a\\ b", "a b"),
        ("$PATH:/x", "/bin:/x"),
        ("100%$", "100%$"),
        ("$1x", "x"),
    ],
)
def test_variables_follow_dockers_rules(text: str, value: str) -> None:
    assert expand(text, VARIABLES) == value


@pytest.mark.parametrize("text", ["'open", '"open', "${A", "${A%x}", "${}", "${MISSING:?must be set}"])
def test_a_broken_expression_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r".+"):
        expand(text, VARIABLES)


@given(text=st.text(max_size=60))
def test_any_text_expands_or_is_an_error(text: str) -> None:
    try:
        assert isinstance(expand(text, VARIABLES), str)
    except ValueError:
        pass


@given(text=st.text(max_size=60))
def test_words_hold_all_that_is_not_blank(text: str) -> None:
    words = split_words(text)
    assert all(words)
    assert "".join("".join(words).split()) == "".join(text.split())


def test_words_are_split_outside_quotes() -> None:
    assert split_words("a='b c' d=\"e f\" g\\ h  i") == ["a='b c'", 'd="e f"', "g\\ h", "i"]


@pytest.mark.parametrize(
    ("rules", "kept", "left"),
    [
        ("*.log", ["a.txt", "sub/a.log"], ["a.log"]),
        ("**/*.log", ["a.txt"], ["a.log", "sub/a.log", "a/b/c.log"]),
        ("node_modules", ["node_modules2"], ["node_modules", "node_modules/x/y"]),
        ("/docs/", ["a/docs"], ["docs", "docs/x"]),
        ("*\n!keep.txt", ["keep.txt"], ["a", "b/c"]),
        ("docs\n!docs/keep", ["docs/keep"], ["docs/other"]),
        ("!a\na", [], ["a"]),
        ("# comment\n\n  \na?c", ["ac", "abbc"], ["abc"]),
        ("[a-c].txt", ["d.txt"], ["a.txt", "c.txt"]),
        ("**", [], ["a", "a/b"]),
    ],
)
def test_dockerignore_rules(rules: str, kept: list[str], left: list[str]) -> None:
    keep = IgnoreRules(rules).keeps
    assert [path for path in [*kept, *left] if keep(path)] == kept


@given(rules=st.text(max_size=60), path=st.text(min_size=1, max_size=20))
def test_any_rules_decide(rules: str, path: str) -> None:
    assert IgnoreRules(rules).keeps(path) in (True, False)


@given(name=st.text(min_size=1, max_size=20).filter(lambda name: not set(name) & set("*?[\\")))
def test_a_name_without_special_characters_matches_itself(name: str) -> None:
    assert compile_glob(name).fullmatch(name)
