"""What a Struct's fields are, for people: name, type in words, default, and the docstring that stands under the field."""

from __future__ import annotations

import ast
import inspect
import textwrap
from typing import Any

import msgspec
from msgspec import inspect as shapes

from rollout.core.types import Struct


class FieldInfo(Struct, frozen=True, kw_only=True):
    """One field of a Struct."""

    name: str
    type: str
    """In words: `integer >= 1`, `list of text`, `one of "a", "b"`."""
    required: bool
    default: str | None
    """As JSON, on one line; None when the field is required."""
    doc: str
    """The text under the field, on one line; empty when there is none."""


def describe_fields(struct: type[msgspec.Struct]) -> list[FieldInfo]:
    """The fields of a Struct in their order."""
    docs = field_docs(struct)
    info = shapes.type_info(struct)
    assert isinstance(info, shapes.StructType)
    return [
        FieldInfo(
            name=field.encode_name,
            type=type_text(field.type),
            required=field.required,
            default=None if field.required else _default_text(field),
            doc=docs.get(field.name, ""),
        )
        for field in info.fields
    ]


def field_docs(struct: type) -> dict[str, str]:
    """Field to the string literal under it; base classes included. Empty where the source cannot be had."""
    docs: dict[str, str] = {}
    for cls in reversed(struct.__mro__):
        if cls.__module__.partition(".")[0] in ("builtins", "msgspec"):
            continue
        try:
            body = ast.parse(textwrap.dedent(inspect.getsource(cls))).body[0]
        except (OSError, TypeError, SyntaxError, IndexError):
            continue
        if isinstance(body, ast.ClassDef):
            docs.update(_docs_of(body))
    return docs


def type_text(kind: shapes.Type) -> str:
    """A type in words."""
    if isinstance(kind, shapes.UnionType):
        parts = [part for part in kind.types if not isinstance(part, shapes.NoneType)]
        return " or ".join([type_text(part) for part in parts] + ["null"] * (len(parts) < len(kind.types)))
    if isinstance(kind, shapes.LiteralType):
        return "one of " + ", ".join(_json(value) for value in kind.values)
    if isinstance(kind, shapes.EnumType):
        return "one of " + ", ".join(_json(member.value) for member in kind.cls)
    if isinstance(kind, shapes.Metadata):
        return type_text(kind.type)
    if isinstance(kind, shapes.ListType | shapes.SetType | shapes.FrozenSetType | shapes.VarTupleType):
        return f"list of {type_text(kind.item_type)}"
    if isinstance(kind, shapes.TupleType):
        return f"list of {len(kind.item_types)}: " + ", ".join(type_text(item) for item in kind.item_types)
    if isinstance(kind, shapes.DictType):
        return f"map of {type_text(kind.value_type)}"
    if isinstance(kind, shapes.StructType):
        return kind.cls.__name__
    return _SIMPLE.get(type(kind), type(kind).__name__.removesuffix("Type").lower()) + _bounds(kind)


_SIMPLE: dict[type, str] = {
    shapes.StrType: "text",
    shapes.IntType: "integer",
    shapes.FloatType: "number",
    shapes.BoolType: "true or false",
    shapes.NoneType: "null",
    shapes.AnyType: "anything",
}


def _bounds(kind: shapes.Type) -> str:
    signs = {"gt": ">", "ge": ">=", "lt": "<", "le": "<="}
    limits = [f"{sign} {limit:g}" for name, sign in signs.items() if (limit := getattr(kind, name, None)) is not None]
    return " " + ", ".join(limits) if limits else ""


def _default_text(field: shapes.Field) -> str:
    value = field.default_factory() if field.default_factory is not msgspec.NODEFAULT else field.default
    return _json(value)


def _json(value: Any) -> str:
    try:
        return msgspec.json.encode(value, enc_hook=str).decode()
    except (TypeError, ValueError, OverflowError):
        return repr(value)


def _docs_of(body: ast.ClassDef) -> dict[str, str]:
    docs = {}
    for field, after in zip(body.body, body.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(after, ast.Expr)
            and isinstance(after.value, ast.Constant)
            and isinstance(after.value.value, str)
        ):
            docs[field.target.id] = " ".join(after.value.value.split())
    return docs
