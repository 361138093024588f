"""Schema 1.1, and the models. One migration for each version of the schema."""

from typing import Any

from django.db import migrations, models

from postrow.django.operations import BringSchema


def _looked_at(name: str, table: str, **options: Any) -> migrations.CreateModel:
    """A model that Django does not manage: it keeps no record of the fields, so the key will do."""
    return migrations.CreateModel(
        name=name,
        fields=[("id", models.UUIDField(primary_key=True, serialize=False))],
        options={"db_table": f'postrow"."{table}', "managed": False, "default_permissions": ("view",), **options},
    )


class Migration(migrations.Migration):
    """Each of its steps commits by itself."""

    initial = True
    atomic = False

    operations = [  # noqa: RUF012  # as Django reads it
        BringSchema(),
        _looked_at("Message", "message"),
        _looked_at("DeadLetter", "dead_letter"),
        _looked_at("History", "history", verbose_name="finished message", verbose_name_plural="history"),
    ]
