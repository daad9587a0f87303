"""A file that was changed, moved or replaced is another one."""

import os
import shutil

import pytest

from ntops.launch import file_changes

NAMES = ("code.py", "inner/code.py", "lib.so")


@pytest.fixture
def folder(tmp_path):
    for name in (*NAMES, "other.txt"):
        (tmp_path / "here" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "here" / name).write_text("one")

    return tmp_path / "here"


@pytest.mark.parametrize("name", NAMES)
def test_state(folder, name):
    path = folder / name
    found = [file_changes.state([folder])]
    os.utime(path, (1, 1))
    found.append(file_changes.state([folder]))
    path.write_text("other")
    os.utime(path, (1, 1))
    found.append(file_changes.state([folder]))
    path.rename(path.with_stem("renamed"))
    found.append(file_changes.state([folder]))
    assert len(set(found)) == 4
    (folder / "other.txt").write_text("another")
    assert file_changes.state([folder]) == found[-1]


@pytest.mark.parametrize("name", NAMES)
def test_contents(folder, name, tmp_path):
    path = folder / name
    found = [file_changes.contents([folder])]
    os.utime(path, (1, 1))
    assert file_changes.contents([folder]) == found[0]
    assert file_changes.contents([shutil.copytree(folder, tmp_path / "there")]) == found[0]
    path.write_text("two")
    found.append(file_changes.contents([folder]))
    path.rename(path.with_stem("renamed"))
    found.append(file_changes.contents([folder]))
    assert len(set(found)) == 3
    (folder / "other.txt").write_text("another")
    assert file_changes.contents([folder]) == found[-1]


@pytest.mark.parametrize("of", [file_changes.state, file_changes.contents])
def test_what_is_linked_counts(folder, tmp_path, of):
    (tmp_path / "there").mkdir()
    (folder / "linked").symlink_to(tmp_path / "there", target_is_directory=True)
    before = of([folder])
    (tmp_path / "there" / "code.py").write_text("one")
    assert of([folder]) != before


@pytest.mark.parametrize("of", [file_changes.state, file_changes.contents])
def test_a_link_to_nothing_is_no_file(folder, of):
    before = of([folder])
    (folder / ".#code.py").symlink_to("me@host.1234:1")
    assert of([folder]) == before


@pytest.mark.parametrize("of", [file_changes.state, file_changes.contents])
def test_what_is_no_folder_is_an_error(folder, of):
    with pytest.raises(OSError, match=r"code\.py"):
        of([folder / "code.py"])
