"""A file that was changed, moved or replaced is another one."""

import os

import pytest

from ntops.host import files


@pytest.mark.parametrize("name", ["code.py", "inner/code.py", "lib.so", "lib.so.1"])
def test_state(tmp_path, name):
    path = tmp_path / name

    for file in ("code.py", "inner/code.py", "lib.so", "lib.so.1", "other.txt"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        (tmp_path / file).write_text("one")

    found = [files.state([tmp_path])]
    os.utime(path, (1, 1))
    found.append(files.state([tmp_path]))
    path.write_text("other")
    os.utime(path, (1, 1))
    found.append(files.state([tmp_path]))
    path.rename(path.with_stem("renamed"))
    found.append(files.state([tmp_path]))
    assert len(set(found)) == 4
    (tmp_path / "other.txt").write_text("another")
    assert files.state([tmp_path]) == found[-1]


def test_what_is_linked_counts(tmp_path):
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    (tmp_path / "here" / "linked").symlink_to(tmp_path / "there", target_is_directory=True)
    before = files.state([tmp_path / "here"])
    (tmp_path / "there" / "code.py").write_text("one")
    assert files.state([tmp_path / "here"]) != before
