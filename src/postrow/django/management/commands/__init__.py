"""Commands of `manage.py`: one module a command."""
