"""Real prices, and scripts that send them to the service."""
