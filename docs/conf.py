"""The site of docs/ and of the committed results: `make docs` builds it into build/docs, from the whole repository, so
that every link between pages leads where it leads on a code host."""

project = "hybridlab"
extensions = ["myst_parser"]
root_doc = "docs/index"
include_patterns = ["docs/**.md", "results/**.md", "README.md", "CONTRIBUTING.md", "CHANGELOG.md", "LICENSE"]
html_theme = "furo"
html_title = "hybridlab"
myst_heading_anchors = 3
# Pages of results are reached by links. Listings of a terminal's output are in no language that is highlighted.
suppress_warnings = ["toc.not_included", "misc.highlighting_failure"]
