"""The admin pages: messages, dead letters and finished messages, to look at and to find, not to change."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any
from uuid import UUID

from django.contrib import admin
from django.core.paginator import Paginator
from django.utils.functional import cached_property
from django.utils.html import format_html
from typing_extensions import override

from postrow.django.models import DeadLetter, History, Message

MOST = 10_000  # rows that a list counts and offers: counting millions takes seconds
LARGE = ("payload", "headers", "failures")


class FirstRows(Paginator):
    """Pages of the first 10,000 rows."""

    @cached_property
    def count(self) -> int:
        """How many rows there are, at most `MOST`."""
        return int(self.object_list.order_by()[:MOST].count())


class ReadOnlyAdmin(admin.ModelAdmin):
    """A page that shows and changes nothing; who may see it has the permission to view the model, or is a superuser."""

    ordering = ("-id",)  # ids begin with the time, and each table has an index of them
    list_filter: Sequence[Any] = ("queue", "tenant")
    search_fields = ("id", "subject")
    search_help_text = "An id, or a subject such as order:17; each as a whole."
    show_full_result_count = False
    paginator = FirstRows
    first: tuple[str, ...] = ()

    @override
    def get_queryset(self, request: Any) -> Any:
        """Without the large columns: a page of messages may have a megabyte each."""
        return super().get_queryset(request).defer(*LARGE)

    @override
    def get_search_results(self, request: Any, queryset: Any, search_term: str) -> tuple[Any, bool]:
        """Those with that id, or that subject: what an index finds."""
        term = search_term.strip()
        if not term:
            return queryset, False
        try:
            return queryset.filter(id=UUID(term)), False
        except ValueError:
            return queryset.filter(subject=term), False

    @override
    def get_object(self, request: Any, object_id: str, from_field: str | None = None) -> Any:
        """One row; the newest, where two tenants chose the same id."""
        try:
            return self.get_queryset(request).defer(None).filter(id=UUID(object_id)).first()
        except ValueError:
            return None

    @override
    def get_fieldsets(self, request: Any, obj: Any = None) -> Sequence[tuple[str | None, dict[str, Any]]]:
        """What matters, with what is in the message; the other columns behind a click."""
        others = [field.name for field in self.opts.fields if field.name not in (*self.first, *LARGE)]
        shown = (*self.first, *(f"{name}_shown" for name in LARGE))
        return [(None, {"fields": shown}), ("Other columns", {"fields": others, "classes": ["collapse"]})]

    @override
    def get_readonly_fields(self, request: Any, obj: Any = None) -> Sequence[str]:
        """All."""
        return [name for _, part in self.get_fieldsets(request, obj) for name in part["fields"]]

    @override
    def has_add_permission(self, request: Any) -> bool:
        """No: `enqueue` does."""
        return False

    @override
    def has_change_permission(self, request: Any, obj: Any = None) -> bool:
        """No: Postrow's functions do."""
        return False

    @override
    def has_delete_permission(self, request: Any, obj: Any = None) -> bool:
        """No: a worker finishes messages, `postrow dead` decides on dead letters."""
        return False

    @admin.display(description="id", ordering="id")
    def whole_id(self, row: Any) -> str:
        """The id in one line."""
        return _html('<span style="white-space: nowrap">{}</span>', row.id)

    @admin.display(description="payload")
    def payload_shown(self, row: Any) -> str:
        """JSON, indented."""
        return _block(_json(row.payload))

    @admin.display(description="headers")
    def headers_shown(self, row: Any) -> str:
        """JSON, indented."""
        return "-" if row.headers is None else _block(_json(row.headers))

    @admin.display(description="failures")
    def failures_shown(self, row: Any) -> str:
        """The last ten attempts that failed, each with its traceback."""
        return _block("\n\n".join(map(_failure, row.failures))) if row.failures else "-"


class MessageAdmin(ReadOnlyAdmin):
    """Unfinished messages."""

    list_display = ("queue", "tenant", "subject", "state", "attempt", "enqueued_at", "available_at", "whole_id")
    first = ("id", "queue", "tenant", "state", "subject")


class Decision(admin.SimpleListFilter):
    """Whether somebody has decided what becomes of a dead letter."""

    title = "decision"
    parameter_name = "decision"

    @override
    def lookups(self, request: Any, model_admin: Any) -> Sequence[tuple[str, str]]:
        """The choices."""
        return [("open", "Waits for one"), ("made", "Redriven or resolved")]

    @override
    def queryset(self, request: Any, queryset: Any) -> Any:
        """The rows of the choice."""
        return queryset if self.value() is None else queryset.filter(resolved_at__isnull=self.value() == "open")


class DeadLetterAdmin(ReadOnlyAdmin):
    """Dead letters, with the reason of each and the last thing that went wrong."""

    list_display = ("queue", "tenant", "subject", "reason", "last_error", "died_at", "resolution", "whole_id")
    list_filter = (Decision, "reason", "queue", "tenant")
    first = ("id", "queue", "tenant", "reason", "died_at", "resolution", "resolution_reason", "resolved_by", "subject")

    @override
    def get_queryset(self, request: Any) -> Any:
        """With the failures, ten at most: the list shows the last."""
        return super().get_queryset(request).defer(None).defer("payload", "headers")

    @admin.display(description="last error", empty_value="-")
    def last_error(self, row: Any) -> str | None:
        """The last failure, in a line."""
        if not row.failures:
            return None
        text = ": ".join(str(part) for key in ("type", "message") if (part := row.failures[-1].get(key)))
        return text if len(text) <= 100 else f"{text[:99]}…"


class HistoryAdmin(ReadOnlyAdmin):
    """Finished messages. Their queues are not listed, only searched: there may be millions, in no order of queues."""

    list_display = ("queue", "tenant", "subject", "outcome", "attempt", "enqueued_at", "finished_at", "whole_id")
    list_filter = ()
    first = ("id", "queue", "tenant", "outcome", "subject", "enqueued_at", "started_at", "finished_at")


def _json(value: object) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def _failure(failure: dict[str, Any]) -> str:
    head = f"attempt {failure.get('attempt')}, {failure.get('at')}, {failure.get('worker') or 'unknown worker'}"
    error = ": ".join(str(part) for key in ("type", "message") if (part := failure.get(key)))
    return "\n".join(part for part in (head, error, failure.get("traceback")) if part)


def _block(text: str) -> str:
    return _html('<pre style="white-space: pre-wrap; overflow-wrap: anywhere; margin: 0">{}</pre>', text)


def _html(template: str, value: object) -> str:
    """The value, escaped, in a template of HTML."""
    html: str = format_html(template, value)
    return html


admin.site.register(Message, MessageAdmin)
admin.site.register(DeadLetter, DeadLetterAdmin)
admin.site.register(History, HistoryAdmin)
