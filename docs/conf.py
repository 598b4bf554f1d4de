"""How Sphinx builds these pages."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "celery_guard"
author = "celery_guard contributors"
release = importlib.metadata.version("celery-guard")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "from_code"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_ext"]
nitpicky = True

html_theme = "furo"
html_title = "celery_guard"
