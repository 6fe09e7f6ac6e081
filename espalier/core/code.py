"""A user's own code by name: ``package.module:name``, or (from Python) an object that this process alone knows.

Experiments are plain tables, so a model, a loss or a metric that is given as an object gets a name. Nothing is imported
before :func:`named` is called.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from espalier.core.errors import ConfigError, raised

#: how the names of objects begin that cannot be imported
_OBJECT = "object "
_OBJECTS: dict[str, Any] = {}


def is_own(name: str) -> bool:
    """Tell whether a name is that of a user's own code, and not of something bundled."""
    return ":" in name or name.startswith(_OBJECT)


def only_in_this_process(name: str) -> bool:
    """Tell whether a name means something that was made in a program itself, where no other process finds it."""
    return name.startswith((_OBJECT, "__main__:"))


def name_of(thing: Any, where: str, accepted: str) -> str:
    """Return the name under which :func:`named` finds what can be called.

    Classes and functions of a module have their import path. Others, such as a module with its weights or a lambda,
    are known in this process alone.

    Raises:
        ConfigError: It cannot be called; ``where`` is the key, ``accepted`` what it takes.
    """
    if not callable(thing):
        raise ConfigError(f"{where} is a {type(thing).__name__}; accepted: {accepted}.")
    module, path = getattr(thing, "__module__", None), getattr(thing, "__qualname__", None)
    if module and path and "<" not in path and module in sys.modules:
        return f"{module}:{path}"
    known = next((n for n, found in _OBJECTS.items() if found is thing), None)
    if known is None:
        known = f"{_OBJECT}{path or type(thing).__qualname__} {len(_OBJECTS) + 1}"
        _OBJECTS[known] = thing
    return known


def short_name(name: str) -> str:
    """Return the last part of a name: ``score`` of ``package.module:score``."""
    return name.removeprefix(_OBJECT).partition(" ")[0].rpartition(":")[2].rpartition(".")[2].strip("<>")


def imported(path: str, where: str) -> Any:
    """Return what a ``package.module:name`` names; the module is imported.

    Raises:
        ConfigError: There is no such thing; ``where`` says which key, or option, named it.
    """
    module, _, attribute = path.partition(":")
    if not module or module.startswith(".") or not attribute:
        raise ConfigError(f"{where} {path}: must be package.module:name.")
    try:
        found: Any = importlib.import_module(module)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(
            f"{where} {path}: cannot be imported ({error}); give package.module:name of something installed, or "
            "file:name of a file in the current directory."
        ) from error
    except Exception as error:  # whatever the user's code raises
        raise ConfigError(f"{where} {path}: fails when it is imported: {raised(error)}.") from error
    return found


def named(name: str, where: str) -> Any:
    """Return what can be called under a name of a user's own code, imported if need be.

    Raises:
        ConfigError: There is no such thing, or it cannot be called; ``where`` is the key that named it.
    """
    try:
        found = _OBJECTS[name] if name in _OBJECTS else imported(name, f"{where} =")
    except ConfigError:
        if not only_in_this_process(name):
            raise
        raise ConfigError(
            f"{where} = {name!r} was made in the program that began the run, where others cannot find it. Put it into "
            "a file of its own as a class or a function and name it 'file:Name'."
        ) from None
    if not callable(found):
        raise ConfigError(f"{where} = {name!r} is a {type(found).__name__}; a callable is accepted.")
    return found


def plug_in(names: Sequence[str]) -> None:
    """Import a user's methods, policies and worlds: files (``mine.py``) or modules (``mine``).

    Raises:
        ConfigError: One is not there, or fails.
    """
    for name in names:
        path = Path(name)
        module = path.stem if path.suffix == ".py" else name
        if path.suffix == ".py":
            taken = getattr(sys.modules.get(module), "__file__", None)
            if module in sys.modules and Path(taken or "").resolve() != path.resolve():
                raise ConfigError(f"--plugin {name}: a module {module!r} is there already; give the file another name.")
            if str(path.parent.absolute()) not in sys.path:
                sys.path.insert(0, str(path.parent.absolute()))
        try:
            importlib.import_module(module)
        except ImportError as error:
            raise ConfigError(f"--plugin {name} cannot be imported: {error}.") from error
        except Exception as error:  # whatever the user's code raises
            raise ConfigError(f"--plugin {name} fails when it is imported: {raised(error)}.") from error
