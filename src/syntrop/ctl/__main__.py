# SPDX-License-Identifier: Apache-2.0
"""`syntropctl`: run the suite where there is no systemd, talk to it, and look after its models."""

from __future__ import annotations

import sys


def main() -> None:
    from syntrop.ctl.commands import run

    try:
        status = run(sys.argv[1:])
    except KeyboardInterrupt:
        status = 130
    except BrokenPipeError:
        # Whoever read our output has seen enough; what is left in the buffer has nowhere to go.
        import os

        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        status = 141
    sys.exit(status)


if __name__ == "__main__":
    main()
