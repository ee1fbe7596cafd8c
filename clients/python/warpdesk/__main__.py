"""`python -m warpdesk` is the command `warpdesk`."""

from warpdesk_server.cli import main

raise SystemExit(main())
