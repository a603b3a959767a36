"""The formats described from their Structs: every key with its docstring, as rows for the docs and as JSON Schema."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
from msgspec import inspect as shapes

from rollout.core.fields import describe_fields, field_docs

SCHEMA_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class FieldDoc(NamedTuple):
    """One key of a format."""

    path: str
    """`agents[].env`."""
    type: str
    """In words."""
    default: str | None
    """As JSON; None when the key is required or a block of keys."""
    doc: str


def fields(struct: type[msgspec.Struct]) -> list[FieldDoc]:
    """Every key of the Struct and of those inside it, each block before its keys."""
    return list(_fields(struct, ""))


def schema(struct: type[msgspec.Struct]) -> dict[str, Any]:
    """The Struct's JSON Schema, with the docstrings as descriptions."""
    (root,), definitions = msgspec.json.schema_components([struct], ref_template="#/$defs/{name}")
    for found in (struct, *_inner_structs(struct)):
        definition = definitions.get(found.__name__)
        if definition is not None:
            _describe(definition, found)
    return {"$schema": SCHEMA_DIALECT, **root, "$defs": definitions}


def _describe(definition: dict[str, Any], struct: type[msgspec.Struct]) -> None:
    definition["description"] = _first_paragraph(struct)
    for name, doc in field_docs(struct).items():
        if name in definition["properties"]:
            definition["properties"][name]["description"] = doc


def _fields(struct: type[msgspec.Struct], prefix: str) -> Iterator[FieldDoc]:
    info = shapes.type_info(struct)
    assert isinstance(info, shapes.StructType)
    for row, field in zip(describe_fields(struct), info.fields, strict=True):
        path = f"{prefix}{row.name}"
        block, is_list = _block(field.type)
        if block is None:
            yield FieldDoc(path, row.type, row.default, row.doc)
        else:
            default = row.default if is_list and field.type is not None and not row.required else None
            yield FieldDoc(path, "list of blocks" if is_list else "block", default, row.doc or _first_paragraph(block))
            yield from _fields(block, f"{path}[]." if is_list else f"{path}.")


def _block(kind: shapes.Type) -> tuple[type[msgspec.Struct] | None, bool]:
    """The Struct that a field holds, and whether in a list."""
    if isinstance(kind, shapes.UnionType):
        return next((found for member in kind.types if (found := _block(member))[0] is not None), (None, False))
    if isinstance(kind, shapes.ListType | shapes.VarTupleType):
        return _block(kind.item_type)[0], True
    return (kind.cls, False) if isinstance(kind, shapes.StructType) else (None, False)


def _inner_structs(struct: type[msgspec.Struct]) -> Iterator[type[msgspec.Struct]]:
    info = shapes.type_info(struct)
    assert isinstance(info, shapes.StructType)
    for field in info.fields:
        block, _ = _block(field.type)
        if block is not None:
            yield block
            yield from _inner_structs(block)


def _first_paragraph(struct: type) -> str:
    own = vars(struct).get("__doc__")
    return " ".join(inspect.cleandoc(own).split("\n\n")[0].split()) if own else ""
