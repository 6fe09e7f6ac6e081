"""What an experiment file may say: every table, key, kind, default and range, read from the code itself.

`families` collects the configuration objects; `pages`, `markdown` and `schema` write them down for a terminal, for the
documents and for editors.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
import inspect
import math
import re
import textwrap
import types
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from espalier.core.bounds import Bound
from espalier.core.coerce import spell
from espalier.core.method import load_methods
from espalier.core.spec import Spec

#: the tables of a file in the order in which people write them; other families stand below
SECTIONS = ("task", "partition", "fleet", "training", "world", "stop", "evaluate", "record")
_NOTHING = dataclasses.MISSING
#: what a study measures by is no choice of an experiment's
_MEASURING = "espalier.methods.benchmark."


@dataclass(frozen=True)
class Key:
    """One key of a table: its type in words, its default (None: it must be given), what is accepted, what it means."""

    name: str
    hint: Any
    default: str | None
    accepted: str
    about: str


def families(*, ours: bool = False) -> dict[str, dict[str, type[Spec]]]:
    """Return the configuration objects by family and kind (``""``: the family has one kind only).

    With ``ours``, only those that come with the package.
    """
    importlib.import_module("espalier.experiment")  # has all sections
    load_methods()
    found: dict[str, dict[str, type[Spec]]] = {}
    for cls in _below(Spec):
        if cls.family and (not ours or _ours(cls)):
            known = {k: c for k, c in sorted(cls.kinds.items()) if not c.__module__.startswith(_MEASURING)}
            kinds = {k: c for k, c in known.items() if not ours or _ours(c)}
            found.setdefault(cls.family, kinds or {"": cls})
    first = [name for name in SECTIONS if name in found]
    return {name: found[name] for name in [*first, *sorted(set(found) - set(first))]}


def _ours(cls: type[Spec]) -> bool:
    # what a fleet's commands set stands in no experiment file
    return cls.__module__.startswith("espalier.") and not cls.__module__.startswith("espalier.fleet.")


def _below(cls: type[Spec]) -> Iterator[type[Spec]]:
    for sub in cls.__subclasses__():
        yield sub
        yield from _below(sub)


def keys(cls: type[Spec]) -> list[Key]:
    """Return the keys of a configuration object, those of its own before those that it shares with others."""
    hints, ranges, described = get_type_hints(cls, include_extras=True), _ranges(cls), _attributes(cls)
    found = []
    own = inspect.get_annotations(cls)
    for field in sorted(dataclasses.fields(cls), key=lambda f: f.name not in own):  # type: ignore[arg-type]
        hint = hints[field.name]
        accepted = "; ".join(filter(None, [*map(str, _bounds(hint)), ranges.get(field.name, "")]))
        found.append(Key(field.name, hint, _default(field), accepted, described.get(field.name, "")))
    return found


def _bounds(hint: Any) -> Iterator[Bound]:
    """Yield the bounds that a type says, also those of a union's members."""
    if get_origin(hint) is Annotated:
        yield from (note for note in get_args(hint) if isinstance(note, Bound))
    elif get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            yield from _bounds(member)


def _default(field: dataclasses.Field[Any]) -> str | None:
    if field.default_factory is not _NOTHING:
        value = field.default_factory()
    elif field.default is not _NOTHING:
        value = field.default
    else:
        return None
    return _toml(value.to_plain() if isinstance(value, Spec) else value)


def _toml(value: Any) -> str:
    """Write a value as an experiment file has it."""
    match value:
        case None:
            return "–"
        case bool():
            return str(value).lower()
        case dict():
            return "{ " + ", ".join(f"{k} = {_toml(v)}" for k, v in value.items()) + " }" if value else "{}"
        case tuple() | list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case str() | Path():
            return f'"{value}"'
        case float():
            return f"{value:g}"
    return str(value)


def _ranges(cls: type[Spec]) -> dict[str, str]:
    """Return what a class and its bases check beyond the types: ``self.require(…, "n_max", "at least n_min")``."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        for name in ("check", "__post_init__"):
            if name not in base.__dict__ or not issubclass(base, Spec):
                continue
            tree = ast.parse(textwrap.dedent(inspect.getsource(base.__dict__[name])))
            for call in ast.walk(tree):
                if isinstance(call, ast.Call) and ast.unparse(call.func) == "self.require" and len(call.args) == 3:
                    key, accepted = call.args[1:]
                    if isinstance(key, ast.Constant) and isinstance(accepted, ast.Constant):
                        found[str(key.value)] = str(accepted.value)
    return found


def _attributes(cls: type[Spec]) -> dict[str, str]:
    """Return what the docstrings of a class and its bases say of each attribute."""
    found: dict[str, str] = {}
    for base in reversed(cls.__mro__):
        text = inspect.cleandoc(base.__dict__.get("__doc__") or "")
        _, _, listed = text.partition("Attributes:\n")
        for name, about in re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", listed, flags=re.M):
            found[name] = " ".join(about.split())
    return found


def _summary(cls: type[Spec]) -> str:
    text = inspect.cleandoc(cls.__doc__ or "")
    return text.partition("\n\nAttributes:")[0].partition("Attributes:\n")[0].strip()


def example(family: str, kind: str, cls: type[Spec]) -> str:
    """Return a line of an experiment file that uses a kind."""
    given = [f'kind = "{kind}"'] if kind else []
    simple = [k for k in keys(cls) if k.default is not None and k.default != "–" and len(k.default) < 30]
    given += [f'{k.name} = "…"' for k in keys(cls) if k.default is None] + [
        f"{k.name} = {k.default}" for k in simple[:3]
    ]
    if family == "method":
        given[0] = f'name = "{kind}"'
        return f"methods = [{{ {', '.join(given)} }}]"
    return f"{family.rpartition('.')[2]} = {{ {', '.join(given)} }}"


def markdown() -> str:
    """Return the whole reference."""
    lines = [
        "# Configuration reference", "",
        "Every table, key and kind of an experiment file, made from the code by `espalier config --markdown`; "
        "`espalier config FAMILY KIND` prints a part, `espalier config --schema` a JSON schema for editors.", "",
        "An experiment has `name`, `seeds` (a list of whole numbers), `methods` (names, or tables with a `name` and "
        "options; `root`, `edge`, `middle` and `local` put policies in the place of a method's own) and the tables "
        + ", ".join(f"[`{s}`](#{s})" for s in SECTIONS) + ".", "",
    ]  # fmt: skip
    for family, kinds in families(ours=True).items():
        lines += [f"## {family}", ""]
        for kind, cls in kinds.items():
            lines += [f"### {family}: {kind}", ""] if kind else []
            lines += [_summary(cls), "", "```toml", example(family, kind, cls), "```", ""]
            rows = keys(cls)
            if rows:
                lines += ["| key | type | default | accepted | meaning |", "| --- | --- | --- | --- | --- |"]
                lines += [_row(row) for row in rows] + [""]
    return "\n".join(lines).rstrip() + "\n"


def _row(key: Key) -> str:
    default = "must be given" if key.default is None else f"`{key.default}`" if key.default != "–" else "–"
    cells = (f"`{key.name}`", words(key.hint), default, key.accepted, key.about)
    return "| " + " | ".join(c.replace("|", "\\|") for c in cells) + " |"


def words(hint: Any) -> str:
    """Name a type in the words of a configuration file; a nested object by its family."""
    if isinstance(hint, type) and issubclass(hint, Spec):
        return f"a table ({hint.family})"
    if get_origin(hint) in (Union, types.UnionType):
        return " or ".join(words(a) for a in get_args(hint) if a is not type(None))
    return spell(hint)


def pages(*, bundled: bool) -> dict[str, dict[str, str]]:
    """Return what a terminal shows of the kinds, by family and kind (``""``: it has one kind only).

    ``bundled``: of the package's own alone.
    """
    return {
        family: {
            k: _page(family, k, cls)
            for k, cls in kinds.items()
            if not bundled or cls.__module__.startswith("espalier.")
        }
        for family, kinds in families().items()
    }


def _page(family: str, kind: str, cls: type[Spec]) -> str:
    lines = [_summary(cls), "", example(family, kind, cls), ""]
    for key in keys(cls):
        default = "must be given" if key.default is None else f"default {key.default}"
        more = "; ".join(filter(None, (words(key.hint), default, key.accepted)))
        lines += [f"  {key.name}: {more}", *([f"      {key.about}"] if key.about else [])]
    return "\n".join(lines)


def schema() -> dict[str, Any]:
    """Return a JSON schema of experiment files."""
    parts = {name: {"$ref": f"#/$defs/{name}"} for name in SECTIONS}
    method = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["name"]}]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "An espalier experiment",
        "type": "object",
        "additionalProperties": False,
        "properties": {
            "name": {"type": "string"},
            "seeds": {"anyOf": [{"type": "integer"}, {"type": "array", "items": {"type": "integer"}, "minItems": 1}]},
            "methods": {"anyOf": [method, {"type": "array", "items": method, "minItems": 1}]},
            **parts,
        },
        "$defs": {family: _family(family, kinds) for family, kinds in families().items()},
    }


def _family(family: str, kinds: dict[str, type[Spec]]) -> dict[str, Any]:
    tables = [_object(kind, cls) for kind, cls in kinds.items()]
    named = [{"type": "string"}] if family == "world" else []
    if list(kinds) == [""]:
        tables[0]["properties"] |= {"preset": {"type": ["string", "object"]}} if family == "world" else {}
        return {"anyOf": [*named, *tables]}
    return {"anyOf": [{"enum": list(kinds)}, *tables]}


def _object(kind: str, cls: type[Spec]) -> dict[str, Any]:
    properties: dict[str, Any] = {"kind": {"const": kind}} if kind else {}
    for key in keys(cls):
        about = "; ".join(filter(None, (key.about, key.accepted and f"accepted: {key.accepted}")))
        properties[key.name] = {**_type(key.hint), **({"description": about} if about else {})}
    if cls.family == "task":
        properties["dataset"] = {"anyOf": [{"type": "string"}, {"type": "object", "required": ["path"]}]}
    needed = [*(["kind"] if kind else []), *(k.name for k in keys(cls) if k.default is None)]
    first = (_summary(cls).splitlines() or [""])[0]
    return {
        "type": "object", "description": first, "properties": properties, "required": needed,
        "additionalProperties": False,
    }  # fmt: skip


_TYPES: dict[Any, dict[str, Any]] = {
    bool: {"type": "boolean"}, int: {"type": "integer"}, float: {"type": "number"}, str: {"type": "string"},
    Path: {"type": "string"}, type(None): {"type": "null"},
}  # fmt: skip


def _type(hint: Any) -> dict[str, Any]:
    origin = get_origin(hint)
    if origin is Annotated:
        return _type(get_args(hint)[0]) | {k: v for b in _bounds(hint) for k, v in _limits(b).items()}
    if origin in (Union, types.UnionType):
        return {"anyOf": [_type(a) for a in get_args(hint) if a is not type(None)]}
    if origin is Literal:
        return {"enum": list(get_args(hint))}
    if origin is tuple:
        args = get_args(hint)
        return {"type": "array", **({"items": _type(args[0])} if args[-1] is Ellipsis else {"minItems": len(args)})}
    if isinstance(hint, type) and issubclass(hint, Spec):
        return {"$ref": f"#/$defs/{hint.family}"}
    return _TYPES.get(hint, {"type": "object"})


def _limits(bound: Bound) -> dict[str, float]:
    ends = {
        "exclusiveMinimum": bound.gt,
        "minimum": bound.ge,
        "exclusiveMaximum": bound.lt,
        "maximum": bound.le,
    }
    return {name: end for name, end in ends.items() if end is not None and math.isfinite(end)}
