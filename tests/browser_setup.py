"""Installs the browser that `make test-slow` opens reports in: Debian's chromium. Does nothing if it is there."""

from __future__ import annotations

import shutil
import subprocess
import sys

BROWSER = "/usr/bin/chromium"


def main() -> int:
    """Return 0 when the browser can be started, 1 with the reason when it cannot."""
    if shutil.which(BROWSER) is None:
        print("installing Debian's chromium ...", flush=True)
        try:
            for command in (
                ["apt-get", "update", "-qq"],
                ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "chromium"],
            ):
                subprocess.run(command, check=True)
        except (OSError, subprocess.CalledProcessError) as error:
            print(
                f"cannot install chromium ({error}). Install it by hand so that {BROWSER} is there, as root: "
                "apt-get install chromium",
                file=sys.stderr,
            )
            return 1
    try:
        version = subprocess.run([BROWSER, "--version"], capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        print(f"{BROWSER} does not start: {error}", file=sys.stderr)
        return 1
    print(version.stdout.strip())
    return 0


if __name__ == "__main__":
    sys.exit(main())
