"""`python -m postrow.sql` prints the text of `checksums.txt` as it should be."""

import sys

from postrow import sql

if __name__ == "__main__":
    sys.stdout.write(sql.checksums())
