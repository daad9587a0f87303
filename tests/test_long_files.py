"""A file over 400 lines says in its module docstring why it is one file."""

import ast
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDERS = ("ntops", "strategies", "conformance", "reports", "tests", "docs")
MOST_LINES = 400
REASON = "One file: "
"""The reason follows."""


def _says_why(text):
    return REASON in " ".join((ast.get_docstring(ast.parse(text)) or "").split())


def test_long_files_say_why_they_are_one_file():
    paths = [*ROOT.glob("*.py"), *(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))]
    lines = {path.relative_to(ROOT): path.read_text() for path in paths}
    long = {path: text for path, text in lines.items() if len(text.splitlines()) > MOST_LINES}
    wrong = [f"{path}: {len(text.splitlines())} lines" for path, text in long.items() if not _says_why(text)]
    assert not wrong, f"over {MOST_LINES} lines, without {REASON!r} and a reason in the docstring: {', '.join(wrong)}"
