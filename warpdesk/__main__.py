"""`python -m warpdesk` is the command `warpdesk`."""

from warpdesk.cli import main

raise SystemExit(main())
