"""How Sphinx builds these pages."""

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "celery_guard"
author = "celery_guard contributors"
release = importlib.metadata.version("celery-guard")

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "from_code", "pictures"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "_ext"]
nitpicky = True
nitpick_ignore_regex = [("py:.*", r"(?!celery_guard).*")]  # other projects are not linked
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "furo"
html_title = "celery_guard"
html_static_path = ["_static"]
