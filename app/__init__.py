"""The REST API: it validates, stores, enqueues and reads back; it computes nothing."""
