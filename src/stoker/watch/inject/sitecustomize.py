"""Enters every Python process of a watched run, then makes way for the site's own module.

Python imports `sitecustomize` before the user's first line; `stoker run` puts this folder on
PYTHONPATH. Written for any Python, also 2: what is too old to be watched is left alone. No module of
the standard library is imported that Python has not imported already, and ours go by a name of
their own, so that any name is free for the user's modules.
"""

import os
import sys


def _enter(folder):
    import _frozen_importlib
    import _frozen_importlib_external

    inside = os.path.join(os.path.dirname(folder), "inside")
    spec = _frozen_importlib_external.spec_from_file_location(
        "_stoker_inside",
        os.path.join(inside, "__init__.py"),
        submodule_search_locations=[inside],
    )
    module = _frozen_importlib.module_from_spec(spec)
    sys.modules["_stoker_inside"] = module
    spec.loader.exec_module(module)
    module.start()


_folder = os.path.dirname(os.path.abspath(__file__))
sys.path[:] = [each for each in sys.path if os.path.abspath(each or ".") != _folder]
if sys.version_info >= (3, 10) and os.path.exists(os.environ.get("STOKER_SCRIBE", "")):
    try:
        _enter(_folder)
    except Exception as error:  # the user's program goes on, whatever is wrong with us
        if os.environ.get("STOKER_DEBUG"):
            sys.stderr.write("stoker: not watching this process: %r\n" % (error,))
del sys.modules["sitecustomize"]
try:
    # The site's own, or the ImportError that Python expects where there is none.
    import sitecustomize  # noqa: F401
except BaseException as error:
    if getattr(error, "__traceback__", None) is not None:
        error.__traceback__ = error.__traceback__.tb_next
    raise
