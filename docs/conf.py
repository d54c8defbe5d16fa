"""The documentation site. From the repository's root: sphinx-build -W docs build/docs"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

import gossipgrad

project = "gossipgrad"
author = "The gossipgrad authors"
copyright = "2026, the gossipgrad authors, Apache 2.0"
version = release = gossipgrad.__version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "house_docstrings", "command_help", "inline_svg"]
exclude_patterns = ["_build"]
default_role = "code"
highlight_language = "sh"  # of blocks without a language
nitpicky = True  # a type that the reference does not hold is an error, but for those of others
_INNER = r"gossipgrad\.(_core|data\.dealing|state\.outputs|show|torch\.group)"
nitpick_ignore_regex = [("py:.*", rf"(os|pathlib|numpy|collections|{_INNER})\..*|Record")]

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

autodoc_mock_imports = ["torch", "lightning", "sklearn"]  # the reference is the same where they are not installed
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
maximum_signature_line_length = 88
python_use_unqualified_type_names = True
add_module_names = False

smartquotes = False  # quotes in the docstrings are those of strings

html_theme = "furo"
html_title = f"gossipgrad {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_theme_options = {  # as in tools/pictures.py; differences get a shade that lets the text be read
    "light_css_variables": {
        "gg-gossip": "#2563eb",
        "gg-other": "#8a8f98",
        "gg-behind": "#c2410c",
        "gg-added": "#d7f5dd",
        "gg-removed": "#fde2e1",
    },
    "dark_css_variables": {
        "gg-gossip": "#6ea8fe",
        "gg-other": "#7d828a",
        "gg-behind": "#fb923c",
        "gg-added": "#163d23",
        "gg-removed": "#4b1d1c",
    },
}
