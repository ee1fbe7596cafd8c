"""The client's command line. Its commands talk to a service; `warpdesk-server` adds the commands that run one."""
