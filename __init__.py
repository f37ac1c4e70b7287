"""Load the package `anabranch` from this clone.

Python reads this file only where it finds a clone that is named `anabranch` before the installed
package: in the clone's parent folder. Its subpackages are the folders beside this file. A folder
without this file would hide an editable install there, as a namespace package.

pytest imports this file too, under the name of the clone's folder. In a clone that is named like an
installed package, such as `ray`, that module would hide the package from the tests.
"""

import sys
from pathlib import Path

if __name__ == "anabranch":
    _source = Path(__file__).parent / "anabranch" / "__init__.py"
    exec(compile(_source.read_text(encoding="utf-8"), _source, "exec"))  # noqa: S102 - our own file
else:
    sys.modules.pop(__name__, None)
