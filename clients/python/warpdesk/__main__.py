"""`python -m warpdesk` is the command `warpdesk`."""

from warpdesk.cli.main import main

raise SystemExit(main())
