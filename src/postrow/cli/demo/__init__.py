"""`postrow demo`: a shop takes orders, things go wrong, and the database proves that no message was lost.

`command.py` is the command line, `story.py` plays it. `shop.py` is the application (queues and handlers) that real
worker processes run (`workers.py`); `orders.py` is what puts messages in. `place.py` finds a database, `stage.py` shows
what happens, `proof.py` asks the database what did.
"""

from __future__ import annotations

from postrow.cli.demo.command import register

__all__ = ["register"]
