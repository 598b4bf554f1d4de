"""How Sphinx builds these pages."""

import importlib.metadata

project = "celery_guard"
author = "celery_guard contributors"
release = importlib.metadata.version("celery-guard")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build"]
nitpicky = True

html_theme = "furo"
html_title = "celery_guard"
