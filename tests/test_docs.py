# SPDX-License-Identifier: Apache-2.0
"""What the pages say that can be checked: the protocol's numbers, the README's program."""
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def messages():
    """{name: {number: (name, type)}} of framestow.proto, enums too."""
    text = re.sub(r"//[^\n]*", "", (ROOT / "proto/framestow.proto").read_text())
    found = {}
    for kind, name, body in re.findall(r"(message|enum) (\w+) \{((?:[^{}]|\{[^{}]*\})*)\}", text):
        if kind == "enum":
            found[name] = {int(n): (item, "") for item, n in re.findall(r"(\w+) = (\d+);", body)}
        else:
            found[name] = {int(n): (item, many + kind) for many, kind, item, n in
                           re.findall(r"(repeated )?(\w+) (\w+) = (\d+)", body)}
    return found


def documented():
    text = (ROOT / "docs/protocol.md").read_text().split("## All messages")[1]
    found = {}
    for name, fields in re.findall(r"^\| (\w+)(?: \(enum\))? \| ([^|]*) \|$", text, re.M):
        found[name] = {int(n): (item, kind or "") for n, item, kind in
                       re.findall(r"(\d+) (\w+)(?:: ((?:repeated )?\w+))?", fields)}
    del found["message"]
    return found


def test_protocol_page():
    assert documented() == messages()


def test_readme_program():
    """The README shows the example that is built and tested, word for word."""
    shown = re.search(r"```c\n(.*?)```", (ROOT / "README.md").read_text(), re.S)[1]
    built = (ROOT / "libclient/examples/first.c").read_text()
    assert built.split("\n", 1)[1] == shown
