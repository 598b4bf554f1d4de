"""How fast celery_guard is beside plain Celery, other task systems and the database itself; see README.md."""
