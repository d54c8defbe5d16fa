"""Reports as one HTML page that loads nothing: pictures by Plotly (pip install 'gossipgrad[report]'), tables, commands.

The functions read reports in terms of JSON, as History.to_dict gives them; docs/report.md has their fields.
"""

from gossipgrad.report.document import bundle, is_page, page, write

__all__ = ["bundle", "is_page", "page", "write"]
