"""Ten writers of one dataset at once, processes that are killed at any step: nothing is lost, nothing is double."""

import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import numpy as np

from warpdesk_server.app.datasets.collection import Datasets
from warpdesk_server.app.datasets.schemas import TIME, DatasetInput
from warpdesk_server.app.datasets.slices import Room, read
from warpdesk_server.workers.store.spool import SpoolStore

WRITERS, ROWS, KILLS = 10, 30, 8

# It forks writers on demand, so that each need not import everything. A writer appends its rows as an API process
# does, and says which is there once `append` has returned.
FORKS = """
import os, signal, sys
from pathlib import Path
import numpy as np
from warpdesk_server.app.datasets.changes import Rows
from warpdesk_server.app.datasets.collection import Datasets
from warpdesk_server.workers.store.spool import SpoolStore
from warpdesk_server.workers.store.usage import Quota
signal.signal(signal.SIGCHLD, signal.SIG_IGN)
for line in sys.stdin:
    if os.fork():
        continue
    writer, rows = map(int, line.split())
    datasets = Datasets(SpoolStore(Path(sys.argv[1]), kept_free=0, quota=Quota(1 << 30, 1 << 30)), 10)
    for row in range(rows):
        time = row * 100 + writer
        blocks = {column: np.full((1, 1), time + part) for column, part in (("open", 0.25), ("close", 0.5))}
        datasets.append("key_a", "us", Rows(np.array([time]), [f"A{writer}"], blocks), correct=True)
        os.write(1, f"{os.getpid()} {writer} {row}\\n".encode())
    os._exit(0)
"""


def test_rows_of_ten_writers_are_there_once_although_their_processes_are_killed(tmp_path: Path) -> None:
    with closing(SpoolStore(tmp_path, kept_free=0)) as store:
        datasets = Datasets(store, 10)
        datasets.create("key_a", "us", {"open": "float64", "close": "float64"}, [])
        chance = random.Random(7)
        command = [sys.executable, "-c", FORKS, str(tmp_path)]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as forks:
            assert forks.stdin is not None
            assert forks.stdout is not None

            def start(writer: int) -> None:
                assert forks.stdin is not None
                forks.stdin.write(f"{writer} {ROWS}\n")
                forks.stdin.flush()

            for writer in range(WRITERS):
                start(writer)
            kills = {writer: chance.randrange(ROWS - 1) for writer in chance.sample(range(WRITERS), KILLS)}
            unfinished = set(range(WRITERS))
            acknowledged: set[int] = set()
            for line in forks.stdout:
                pid, writer, row = map(int, line.split())
                acknowledged.add(row * 100 + writer)
                if kills.get(writer, ROWS) <= row:  # it is somewhere in its next append by now
                    del kills[writer]
                    os.kill(pid, signal.SIGKILL)
                    with datasets.reading("key_a", "us") as (index, _):
                        assert acknowledged <= set(index.times.tolist())
                    start(writer)  # which sends the same rows again
                elif row == ROWS - 1:
                    unfinished.discard(writer)
                if not unfinished:
                    break
            forks.stdin.close()

        wanted = DatasetInput(dataset="us", column=TIME)
        times = read(datasets, Room(store, 1 << 30), "key_a", wanted, "").numbers
        assert times.tolist() == sorted(row * 100 + writer for row in range(ROWS) for writer in range(WRITERS))
        for column, part in (("open", 0.25), ("close", 0.5)):
            found = read(datasets, Room(store, 1 << 30), "key_a", wanted.model_copy(update={"column": column}), "")
            for asset, row in zip(found.assets, found.numbers, strict=True):
                own = times % 100 == int(asset[1:])
                assert np.array_equal(row, np.where(own, times + part, np.nan), equal_nan=True)
        assert datasets.summary("key_a", "us").version == WRITERS * ROWS  # each row is one version, and none is two
