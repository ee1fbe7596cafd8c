"""The entry point of `python -m warpdesk`: runs the command `warpdesk`."""

from warpdesk.cli.main import main

raise SystemExit(main())
