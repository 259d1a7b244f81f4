"""The pages: every module has `routes`, and a `link` for the navigation."""

from __future__ import annotations

from starlette.routing import BaseRoute

from penstock.console.pages import activity, claims, explorer, job, overview, quarantine, settings, table, verify
from penstock.console.rendering import Link

MODULES = (overview, job, table, quarantine, claims, verify, explorer, settings, activity)
"""In the order of the navigation."""
LINKS: tuple[Link, ...] = tuple(module.link for module in MODULES)
ROUTES: tuple[BaseRoute, ...] = tuple(route for module in MODULES for route in module.routes)
