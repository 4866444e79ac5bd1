"""Sphinx's settings for `make docs`; its sources are staged by stage.py."""

project = "ringtune"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 4
autodoc_typehints = "description"
autodoc_member_order = "groupwise"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
# Attributes as fields of their class: as members they would be described twice.
napoleon_use_ivar = True
html_theme = "furo"
html_title = "ringtune"
html_copy_source = False
html_static_path = ["static"]
html_css_files = ["narrow.css"]
