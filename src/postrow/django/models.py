"""Postrow's tables as Django models, to look at: Postrow's functions write them, and Django does not manage them."""
# ruff: noqa: DJ001  # the columns are what they are: null where there is none

from __future__ import annotations

from django.db import models
from django.utils import timezone


def _table(name: str) -> str:
    """A table in the schema `postrow`. Django knows no schemas, and puts quotes around the whole."""
    return f'postrow"."{name}'


class _Row(models.Model):
    """What live, finished and dead messages have in common."""

    id = models.UUIDField(primary_key=True)  # with the tenant, in fact; ids are UUIDs, so this will do
    tenant = models.TextField()
    queue = models.TextField()
    subject = models.TextField(null=True)
    topic = models.TextField(null=True)
    priority = models.SmallIntegerField()
    attempt = models.IntegerField()
    max_attempts = models.IntegerField(null=True)
    enqueued_at = models.DateTimeField()
    enqueued_by = models.TextField(null=True)
    expires_at = models.DateTimeField(null=True)
    claimed_by = models.TextField(null=True)
    target = models.TextField(null=True)
    group_key = models.TextField(null=True)
    dedup_key = models.TextField(null=True)
    parent_id = models.UUIDField(null=True)
    hops = models.SmallIntegerField()
    payload = models.JSONField()
    headers = models.JSONField(null=True)
    failures = models.JSONField(null=True)

    class Meta:
        """Shared by the three."""

        abstract = True

    def __str__(self) -> str:
        return f"{self.queue} / {self.tenant} {self.id}"


class Message(_Row):
    """An unfinished message."""

    available_at = models.DateTimeField()
    claimed_at = models.DateTimeField(null=True)
    target_until = models.DateTimeField(null=True)
    claim_token = models.UUIDField(null=True)
    behind = models.BooleanField()  # of a group: another stands in front of it

    class Meta:
        """Of `postrow.message`."""

        managed = False
        db_table = _table("message")
        default_permissions = ("view",)

    @property
    def state(self) -> str:
        """`claimed`, `scheduled` or `ready`."""
        if self.claim_token is not None:
            return "claimed"
        return "scheduled" if self.available_at > timezone.now() else "ready"


class DeadLetter(_Row):
    """A message that ran out of attempts, expired or was buried; kept until someone decides."""

    claimed_at = models.DateTimeField(null=True)
    died_at = models.DateTimeField()
    reason = models.TextField()
    resolution = models.TextField(null=True)
    resolution_reason = models.TextField(null=True)
    resolved_at = models.DateTimeField(null=True)
    resolved_by = models.TextField(null=True)
    redriven_as = models.UUIDField(null=True)

    class Meta:
        """Of `postrow.dead_letter`."""

        managed = False
        db_table = _table("dead_letter")
        default_permissions = ("view",)


class History(_Row):
    """A finished message."""

    started_at = models.DateTimeField(null=True)
    finished_at = models.DateTimeField()
    outcome = models.TextField()

    class Meta:
        """Of `postrow.history`."""

        managed = False
        db_table = _table("history")
        default_permissions = ("view",)
        verbose_name = "finished message"
        verbose_name_plural = "history"
