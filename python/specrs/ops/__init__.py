"""Operators for torch models. Each module loads torch when it is imported; this package does not.

``specrs.ops.linear``
    Small-batch linear layers on the CPU, and :func:`specrs.ops.linear.accelerate` to put them into a model.
"""

from __future__ import annotations

__all__: list[str] = []
