"""The kernel's own process: set its limits, then be an ordinary Jupyter kernel.

Run as a script, by its path, with any Python that has `ipykernel`; it imports nothing of ours.
"""

import ctypes
import json
import sys
from contextlib import suppress

PR_SET_CHILD_SUBREAPER = 36


def limit(limits: dict[str, int]) -> None:
    """Set resource limits by name, soft and hard; none is ever raised."""
    import resource

    for name, value in limits.items():
        which = getattr(resource, name, None)
        if which is not None:
            _, hard = resource.getrlimit(which)
            most = value if hard == resource.RLIM_INFINITY else min(value, hard)
            resource.setrlimit(which, (most, most))


def keep_orphans() -> None:
    """Become the parent of whatever the code leaves behind, so that it can be found and killed."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def main() -> None:
    """Take the limits from the first argument and leave the others to the kernel."""
    limits = json.loads(sys.argv.pop(1))
    with suppress(ImportError):  # there are none on this system
        limit(limits)
    keep_orphans()
    sys.path.insert(0, "")  # the working directory, as in any session
    from ipykernel import kernelapp

    kernelapp.launch_new_instance()


if __name__ == "__main__":
    main()
