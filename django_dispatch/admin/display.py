"""How the admin shows a value: pure functions from values to safe HTML that never raise on odd rows."""

import json
import math
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Model
from django.utils import timezone
from django.utils.dateparse import parse_datetime
from django.utils.formats import date_format
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString, mark_safe
from django.utils.translation import gettext as _

MAX_CHARACTERS = 100_000
MAX_ERRORS = 50
EMPTY = "-"
UNITS = ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))


def database_now(row: Model) -> datetime:
    """Return the database's time when it read the row, from the annotation of the same name."""
    now: datetime = vars(row)["database_now"]
    return now


def badge(code: str, label: str) -> SafeString:
    """Return a coloured dot with its text. A code that the style sheet does not know is grey."""
    return format_html('<span class="dispatch-badge" data-code="{}">{}</span>', code, label or _("(empty)"))


def length(span: timedelta) -> str:
    """Return a span in its two largest units, such as ``4 min 12 s``, and below ten seconds with more digits."""
    seconds = max(span.total_seconds(), 0.0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return " ".join(_parts(span)[:2])


def task_path(path: str) -> SafeString:
    """Return a task's path that may be wrapped after each dot."""
    return format_html_join(mark_safe(".<wbr>"), "{}", ([part] for part in path.split(".")))


def moment(at: datetime | None, now: datetime) -> SafeString | str:
    """Return ``3 s ago`` or ``in 12 s``, with the exact time as its tooltip."""
    if at is None:
        return EMPTY
    # Nobody reads the seconds of an age in hours: the largest unit is enough.
    span = _parts(abs(now - at))[0]
    text = _("%s ago") % span if at <= now else _("in %s") % span
    return format_html('<time class="dispatch-moment" title="{}">{}</time>', _exact(at), text)


def exact_moment(at: datetime | None, now: datetime) -> SafeString | str:
    """Return the time to the second, and how long ago that is."""
    return EMPTY if at is None else format_html("{} ({})", _exact(at), moment(at, now))


def json_block(value: Any) -> SafeString:
    """Return a value as indented JSON, cut off after MAX_CHARACTERS."""
    pieces, size = [], 0
    for piece in json.JSONEncoder(indent=2, ensure_ascii=False, default=repr).iterencode(value):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARACTERS:
            break
    return _text_block("".join(pieces))


def error_blocks(errors: Any) -> SafeString | str:
    """Return one block for each entry of ``Run.errors``, the newest first, whatever shape the entries have."""
    entries = errors if isinstance(errors, list) else [errors] if errors else []
    shown = format_html_join("", "{}", ([_error_block(entry)] for entry in reversed(entries[-MAX_ERRORS:])))
    if len(entries) > MAX_ERRORS:
        return shown + _note(_("The newest %(shown)d of %(all)d.") % {"shown": MAX_ERRORS, "all": len(entries)})
    return shown or EMPTY


def progress_bar(progress: Any) -> SafeString | str:
    """Return a bar for ``{"done", "total", "message"}``, and the JSON of anything else."""
    if progress is None:
        return EMPTY
    done, total = (progress.get("done"), progress.get("total")) if isinstance(progress, dict) else (None, None)
    if not (_is_amount(done) and _is_amount(total) and total):
        return json_block(progress)
    return format_html(
        '<progress max="{}" value="{}"></progress> {} {}',
        *(str(total), str(min(done, total))),
        _("%(done)s of %(total)s") % {"done": f"{done:,}", "total": f"{total:,}"},
        progress.get("message") or "",
    )


def names(values: Any) -> str:
    """Return a list's items with commas between them."""
    return ", ".join(map(str, values)) if isinstance(values, Iterable) and not isinstance(values, str) else str(values)


def _error_block(entry: Any) -> SafeString:
    if not isinstance(entry, dict) or not any(entry.get(key) for key in ("exception_class", "message", "kind")):
        return format_html('<div class="dispatch-error">{}</div>', json_block(entry))
    head = [_("attempt %s") % entry["attempt"]] if entry.get("attempt") is not None else []
    head += [str(entry[key]) for key in ("kind", "executor") if entry.get(key)]
    if _is_amount(peak_kb := entry.get("peak_kb")) and peak_kb:
        head.append(_("peak memory %d MB") % (peak_kb // 1024))
    if at := entry.get("at"):
        head.append(_exact_text(at))
    title = ": ".join(str(entry[key]) for key in ("exception_class", "message") if entry.get(key))
    blocks = [_text_block(str(entry["traceback"]))] if entry.get("traceback") else []
    if note := entry.get("note"):
        blocks.append(_note(str(note)[:MAX_CHARACTERS]))
    if log := entry.get("log"):
        blocks += [_note(_("What its executor logged last:")), _text_block(str(log))]
    return format_html(
        '<div class="dispatch-error"><div class="dispatch-note">{}</div><strong>{}</strong>{}</div>',
        " · ".join(head),
        title[:MAX_CHARACTERS],
        format_html_join("", "{}", ([block] for block in blocks)),
    )


def _text_block(text: str) -> SafeString:
    block = format_html('<pre class="dispatch-text">{}</pre>', text[:MAX_CHARACTERS])
    if len(text) <= MAX_CHARACTERS:
        return block
    return block + _note(_("Cut off: only the first %d kB are shown.") % (MAX_CHARACTERS // 1000))


def _note(text: str) -> SafeString:
    return format_html('<p class="dispatch-note">{}</p>', text)


def _is_amount(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _parts(span: timedelta) -> list[str]:
    rest, parts = int(span.total_seconds()), list[str]()
    for seconds, unit in UNITS:
        count, rest = divmod(rest, seconds)
        if count or parts or unit == "s":
            parts.append(f"{count} {unit}")
    return parts


def _exact(at: datetime) -> str:
    return date_format(timezone.localtime(at) if timezone.is_aware(at) else at, "Y-m-d H:i:s")


def _exact_text(at: Any) -> str:
    try:
        parsed = parse_datetime(str(at))
    except ValueError:
        parsed = None
    return _exact(parsed) if parsed else str(at)
