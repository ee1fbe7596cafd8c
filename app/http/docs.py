"""Routes of the interactive page at /docs: Swagger UI, served from files beside this one, so it needs no internet."""

from pathlib import Path

from fastapi import APIRouter
from fastapi.responses import FileResponse, HTMLResponse, Response

from warpdesk_server.app.kit.errors import Refusal

router = APIRouter(include_in_schema=False)

_FOLDER = Path(__file__).parent / "swagger_ui"
_ASSETS = {
    "swagger-ui-bundle.js": "text/javascript",
    "swagger-ui.css": "text/css",
    "favicon.png": "image/png",
}

# Scripts, requests and styles of this server alone, nothing inline. Swagger UI sets styles through the DOM, which the
# policy does not restrict, and its style sheet holds icons as data: URLs.
_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)

# Paths are relative, so that the page also works behind a proxy that serves it under a prefix.
_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>Warpdesk</title>
<link rel="stylesheet" href="docs/swagger-ui.css">
<link rel="icon" href="docs/favicon.png">
</head>
<body>
<div id="swagger-ui"></div>
<script src="docs/swagger-ui-bundle.js"></script>
<script src="docs/start.js"></script>
</body>
</html>
"""

# No validator: it is a site on the internet that would be sent the address of the document.
_START = """SwaggerUIBundle({
  url: "openapi.json",
  dom_id: "#swagger-ui",
  presets: [SwaggerUIBundle.presets.apis],
  deepLinking: true,
  validatorUrl: null,
});
"""


@router.get("/docs")
async def page() -> Response:
    """The interactive documentation of the HTTP API at `/docs`, an HTML page."""
    return HTMLResponse(_PAGE, headers={"Content-Security-Policy": _POLICY})


@router.get("/docs/start.js")
async def start() -> Response:
    return Response(_START, media_type="text/javascript")


@router.get("/docs/{name}")
async def asset(name: str) -> Response:
    if name not in _ASSETS:
        raise Refusal("not-found", f"There is nothing at /docs/{name[:64]}")
    return FileResponse(_FOLDER / name, media_type=_ASSETS[name], headers={"Cache-Control": "max-age=3600"})
