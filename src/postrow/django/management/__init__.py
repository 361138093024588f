"""What `manage.py` finds."""
