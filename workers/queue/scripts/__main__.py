"""Write the scripts as they are sent to Redis, to be read or linted: `python -m ...workers.queue.scripts DIRECTORY`."""

import sys
from pathlib import Path

from warpdesk_server.workers.queue import scripts


def main(directory: str) -> None:
    folder = Path(directory)
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in vars(scripts).items():
        if text in scripts.SCRIPTS:
            (folder / f"{name.lower()}.lua").write_text(text + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
