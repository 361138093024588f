"""What to ask the database: SQL with parameters and how to read the rows. No I/O here.

Results are cast to plain types in SQL (ids and JSON as text), since a user's connection may have its own codecs.
"""

from postrow.ops.op import Op, Row

__all__ = ["Op", "Row"]
