"""How a command shows documents: aligned for people, or as JSON or YAML for programs."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

WIDEST_CELL = 60


def as_json(document: Any) -> str:
    """Return indented JSON."""
    return json.dumps(document, indent=2, ensure_ascii=False, default=str)


def as_yaml(document: Any) -> str:
    """Return YAML. Raises CommandError where PyYAML is not installed."""
    try:
        import yaml
    except ImportError:
        from django.core.management.base import CommandError  # which is not wanted before Django is

        raise CommandError('--yaml needs PyYAML: pip install "django-dispatch[yaml]"') from None
    text: str = yaml.safe_dump(json.loads(json.dumps(document, default=str)), sort_keys=False, allow_unicode=True)
    return text.rstrip("\n")


def as_table(answers: Iterable[Mapping[str, Any]]) -> str:
    """Return each node's answer: a table where it is a list of like things, else one line a value."""
    return "\n\n".join("\n".join(_answer(answer)) for answer in answers)


def _answer(answer: Mapping[str, Any]) -> list[str]:
    body = {key: value for key, value in answer.items() if key not in ("node_id", "lease_id")}
    return [str(answer.get("node_id", "?")), *(f"  {line}" for line in (_lines(body) or ["(nothing)"]))]


def _lines(document: Mapping[str, Any]) -> list[str]:
    if document and all(isinstance(value, Mapping) and value and _is_flat(value) for value in document.values()):
        return _rows([{"": key, **value} for key, value in document.items()])
    lines: list[str] = []
    width = max((len(key) for key, value in document.items() if _is_short(value)), default=0)
    for key, value in document.items():
        if isinstance(value, Mapping) and value:
            lines += [key, *(f"  {line}" for line in _lines(value))]
        elif _is_table(value):
            lines += [key, *(f"  {line}" for line in _rows(value))]
        elif _is_short(value):
            lines.append(f"{key:{width}}  {_text(value)}")
        else:
            lines += [key, *(f"  {line}" for line in str(value).splitlines())]
    return lines


def _is_flat(document: Mapping[str, Any]) -> bool:
    return all(_is_short(value) for value in document.values())


def _is_short(value: Any) -> bool:
    if isinstance(value, Mapping):
        return not value
    if isinstance(value, list):
        return all(not isinstance(item, Mapping | list) for item in value)
    return "\n" not in str(value)


def _is_table(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(item, Mapping) for item in value)


def _rows(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """One line a document, one column a key, aligned."""
    columns = list(dict.fromkeys(key for document in documents for key in document))
    cells = [columns, *([_cell(document.get(column)) for column in columns] for document in documents)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    return ["  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]


def _cell(value: Any) -> str:
    text = _text(value)
    return text if len(text) <= WIDEST_CELL else f"{text[: WIDEST_CELL - 1]}…"


def _text(value: Any) -> str:
    if value is None or value in ([], {}):
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
