# SPDX-License-Identifier: MIT OR Apache-2.0
"""Extension of griffe: functions have the signatures that `like()` gives them, as at run time."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Like(griffe.Extension):
    """Replaces the parameters of functions that have the signature of another one."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        """Is called once griffe has read the package."""
        for module in pkg.modules.values():
            for owner in (module, *module.classes.values()):
                for function in owner.functions.values():
                    if not function.is_alias:
                        self.replace(pkg, function)

    def replace(self, package: griffe.Module, function: griffe.Function) -> None:
        """Replaces the parameters of one function, if it has such a decorator."""
        for decorator in function.decorators:
            found = re.fullmatch(r"(method_)?like\(_signatures\.(\w+)\)", str(decorator.value))
            if found is None:
                continue
            shown = package[f"_signatures.{found[2]}"].parameters
            own = list(function.parameters)[:1] if found[1] else []
            function.parameters = griffe.Parameters(*own, *shown)
