"""As small as settings can be, with the admin."""

import os

from psycopg.conninfo import conninfo_to_dict

import postrow

# What is Postrow's: the app, and where its worker finds the handlers.
POSTROW_APP = "shop.jobs:app"

INSTALLED_APPS = [
    "shop",
    "postrow.django",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
]

# This example takes its database from POSTROW_DSN, so that it runs on a private server too (embedded:). Your settings
# name yours in DATABASES as ever, and Postrow reads it there.
server = postrow.App()
place = conninfo_to_dict(server.dsn)
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.postgresql",
        "NAME": place["dbname"],
        "USER": place.get("user", ""),
        "PASSWORD": place.get("password", ""),
        "HOST": place.get("host", ""),
        "PORT": place.get("port", ""),
    }
}

DEBUG = True
SECRET_KEY = os.environ.get("SECRET_KEY", "not a secret: this is an example")
ALLOWED_HOSTS = ["localhost", "127.0.0.1", "testserver"]
ROOT_URLCONF = "shop.urls"
STATIC_URL = "static/"
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
MIDDLEWARE = [
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
]
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
            ]
        },
    }
]
