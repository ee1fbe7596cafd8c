"""Which process is dead is told without mistaking another one for it."""

import os
import subprocess
import sys

from warpdesk_server.workers.process import identity, is_dead


def test_this_process_is_alive() -> None:
    assert not is_dead(identity())
    assert identity() == identity(os.getpid())


def test_an_ended_process_is_dead_reaped_or_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = identity(child.pid)
    assert not is_dead(process)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(process)
    child.communicate()
    assert is_dead(process)


def test_a_number_that_was_given_to_another_process_does_not_count() -> None:
    host, pid, start = identity().split("|")
    assert is_dead(f"{host}|{pid}|{int(start) - 1}")


def test_a_process_of_another_host_is_not_judged() -> None:
    _, pid, start = identity().split("|")
    assert not is_dead(f"elsewhere|{pid}|{int(start) - 1}")
    assert not is_dead("")
