"""The console: web pages that show jobs, and let an operator act on them; needs the extra `console`."""

from importlib.util import find_spec

from penstock.errors import UserError

if not (find_spec("jinja2") and find_spec("starlette")):
    raise UserError("the console needs Starlette and Jinja2", hint="install penstock[console]")
