"""Postrow in a Django project: migrations, a worker command, the admin. `INSTALLED_APPS += ["postrow.django"]`."""

from postrow.django.app import App

__all__ = ["App"]
