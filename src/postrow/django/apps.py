"""The entry in INSTALLED_APPS."""

from django.apps import AppConfig


class PostrowConfig(AppConfig):
    """`postrow.django`, under the label `postrow`."""

    name = "postrow.django"
    label = "postrow"
    verbose_name = "Postrow"
