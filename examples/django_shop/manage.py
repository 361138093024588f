"""A shop in Django: a request writes an order and enqueues its confirmation, in one transaction.

In this folder, with POSTROW_DSN set (embedded: for a private Postgres) and `pip install 'postrow[django,embedded]'`:

    python manage.py migrate                    # the shop's tables and Postrow's
    python manage.py runserver                  # one terminal
    python manage.py postrow_worker             # another

    curl -d item=tea -d quantity=2 localhost:8000/orders       # an order, and its message
    curl -d item=tea -d quantity=2000 localhost:8000/orders    # an error: neither
    curl localhost:8000/orders                                 # the worker has confirmed it

    python manage.py createsuperuser            # then look at localhost:8000/admin/
"""

import os
import sys

from django.core.management import execute_from_command_line

if __name__ == "__main__":
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "shop.settings")
    execute_from_command_line(sys.argv)
