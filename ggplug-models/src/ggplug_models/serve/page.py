"""The chat page: one file with its style and script, which connects only to this server."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib import resources

from starlette.responses import Response


class Page:
    """The page, with a Content-Security-Policy that allows only its own style and script."""

    def __init__(self) -> None:
        self._content = resources.files("ggplug_models.serve").joinpath("page.html").read_bytes()
        style, script = (_digests(tag, self._content) for tag in (b"style", b"script"))
        self._headers = {
            "Content-Security-Policy": (
                f"default-src 'none'; style-src {style}; script-src {script}; connect-src 'self'; img-src data:; "
                "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
            ),
            "Cache-Control": "no-cache",
        }

    async def response(self) -> Response:
        """The response with the page."""
        return Response(self._content, media_type="text/html", headers=self._headers)


def _digests(tag: bytes, content: bytes) -> str:
    """The digests of the elements with this tag, as Content-Security-Policy writes them."""
    found = re.findall(rb"<%s>(.*?)</%s>" % (tag, tag), content, re.DOTALL)
    return " ".join(f"'sha256-{base64.b64encode(hashlib.sha256(each).digest()).decode()}'" for each in found)
