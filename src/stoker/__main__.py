"""`python -m stoker` is `stoker`."""

from stoker.commands import main

raise SystemExit(main())
