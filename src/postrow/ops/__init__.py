"""What to ask the database: SQL with parameters and how to read the rows. No I/O here.

JSON is text both ways, since a user's connection may have a codec of its own; the other types of results are few (uuid,
boolean, integers, text), and a driver reads them with its own library's codecs, whatever the user has set.
"""

from postrow.ops.op import Op, Row

__all__ = ["Op", "Row"]
