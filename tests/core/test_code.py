import functools
import sys
from pathlib import Path

import pytest

from espalier.core.code import is_own, name_of, named, plug_in, short_name
from espalier.core.errors import ConfigError


def add(a, b):
    return a + b


def test_functions_of_a_module_have_their_import_path():
    name = name_of(add, "key", "a function")
    assert name == "tests.core.test_code:add" and is_own(name)
    assert named(name, "key") is add
    assert short_name(name) == "add" and short_name("package.module:Class.score") == "score"


def test_other_objects_are_known_in_this_process_alone():
    for thing in (lambda a: a, functools.partial(add, 1)):
        name = name_of(thing, "key", "a function")
        assert is_own(name) and named(name, "key") is thing
        assert name_of(thing, "key", "a function") == name, "one object has one name"
    assert short_name(name_of(lambda a: a, "key", "")) == "lambda"
    with pytest.raises(ConfigError, match="key = 'object add 99' was made in the program that began the run"):
        named("object add 99", "key")


def test_what_cannot_be_called_is_refused():
    assert not is_own("cross_entropy")
    with pytest.raises(ConfigError, match=r"task.loss is a int; accepted: a name, or a function"):
        name_of(3, "task.loss", "a name, or a function")
    with pytest.raises(ConfigError, match=r"task.loss = 'math:pi' is a float"):
        named("math:pi", "task.loss")


def test_a_plug_in_may_be_given_again_by_another_way_but_not_another_of_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "other").mkdir()
    for folder in ("real", "other"):
        (tmp_path / folder / "plugged_in_here.py").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    plug_in([str(tmp_path / "link" / "plugged_in_here.py")])
    plug_in([str(tmp_path / "real" / "plugged_in_here.py")])
    with pytest.raises(ConfigError, match="a module 'plugged_in_here' is there already; give the file another name"):
        plug_in([str(tmp_path / "other" / "plugged_in_here.py")])
    with pytest.raises(ConfigError, match="a module 'json' is there already"):
        plug_in([str(tmp_path / "json.py")])
    sys.modules.pop("plugged_in_here")
