"""The specification of Warpdesk, as tests."""
