"""What connects celery_guard to other packages; each module needs its own extra."""
