"""Signed job records: a MAC shows that this service wrote a job's request, and not a worker's account of Redis."""

import hmac
import logging
from collections.abc import Callable
from functools import lru_cache

from pydantic import ValidationError

from warpdesk_server.workers.queue.encoding import job_record
from warpdesk_server.workers.queue.protocol import JobRequest
from warpdesk_server.workers.queue.records import JobRecord

log = logging.getLogger("warpdesk.queue")


class SignedRecords:
    """The signing of requests in job records, and the reading of records from Redis.

    Workers' accounts may write any record. A process that has the store has `mac_of`, a digest by a key that is in no
    account of Redis. It rejects requests that are not signed, or that are signed for another job. Without `mac_of`
    nothing is signed or rejected.
    """

    def __init__(self, mac_of: Callable[[str], str] | None) -> None:
        self._mac_of = mac_of

    @property
    def signs(self) -> bool:
        return self._mac_of is not None

    def mac(self, request: str) -> str:
        return "" if self._mac_of is None else self._mac_of(request)

    def request(self, job_id: str, request: str, mac: str) -> JobRequest | None:
        """The request in a job record; None where this service did not write it, or wrote it for another job."""
        if self._mac_of is None or hmac.compare_digest(self._mac_of(request).encode(), mac.encode()):
            try:
                read = JobRequest.model_validate_json(request)
            except ValidationError as error:
                _log_once(job_id, f"its request cannot be read at {error.errors()[0]['loc']}")
                return None
            if read.id == job_id:
                return read
        _log_once(job_id, "its request is not what this service wrote")
        return None

    def record(self, job_id: str, fields: dict[str, str]) -> JobRecord | None:
        """The job record with these fields in Redis; None where there are none, or where it cannot be relied on."""
        if not fields:
            return None
        request = self.request(job_id, fields.get("request", ""), fields.get("mac", ""))
        try:
            return None if request is None else job_record(request, fields)
        except (ValueError, KeyError) as error:  # of another release, or a worker's account wrote it
            _log_once(job_id, repr(error))
            return None


@lru_cache(maxsize=1024)
def _log_once(job_id: str, why: str) -> None:
    """Log once why a job record is ignored: whoever waits for a job reads its record every few seconds."""
    log.error("the record of %s is ignored: %s", job_id, why)
