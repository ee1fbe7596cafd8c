"""The command line. Its commands talk to a service; `warpdesk-server` adds those that are one."""
