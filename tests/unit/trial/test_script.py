import pytest

from rollout.core.trial.script import interpreter


@pytest.mark.parametrize(
    ("script", "argv"),
    [
        (b"echo hi\n", ("bash",)),
        (b"", ("bash",)),
        (b"#!/bin/sh\necho", ("/bin/sh",)),
        (b"#!/usr/bin/env python3\n", ("/usr/bin/env", "python3")),
        (b"#! /usr/bin/env -S python3 -u\n", ("/usr/bin/env", "-S python3 -u")),
        (b"#!/bin/bash\r\n", ("/bin/bash",)),
        (b"#!\necho", ("bash",)),
    ],
)
def test_a_script_is_started_as_its_shebang_says(script: bytes, argv: tuple[str, ...]) -> None:
    assert interpreter(script) == argv
