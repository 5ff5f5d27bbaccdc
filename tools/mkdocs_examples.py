"""Examples of docstrings as code on the reference pages.

Our docstrings say "Example:"; the reader of Google-style docstrings knows only "Examples:", and would show the prompts
under the other as quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe


class Examples(griffe.Extension):
    """Rename the section in every docstring before it is parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = re.sub(r"^Example:$", "Examples:", obj.docstring.value, flags=re.MULTILINE)
