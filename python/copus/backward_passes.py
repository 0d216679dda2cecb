"""Counts the backward passes of a step, without changing them."""

from __future__ import annotations

from torch import Tensor

_PARAMETERS = 2  # that are listened to: a part of a model may have no gradient in a pass


class BackwardPasses:
    """Counts backward passes, by hooks that run after the gradient of a parameter is accumulated. PyTorch does not save
    these hooks with a model."""

    def __init__(self, parameters: list[Tensor]):
        with_gradient = [parameter for parameter in parameters if parameter.grad is not None]
        chosen = [*with_gradient[:1], *with_gradient[1:][-(_PARAMETERS - 1) :]]
        self._counts = [0] * len(chosen)
        self._missed = 1  # whose gradient is there already
        self._hooks = [
            parameter.register_post_accumulate_grad_hook(self._counter(index)) for index, parameter in enumerate(chosen)
        ]

    def _counter(self, index: int):
        def count(_: Tensor) -> None:
            self._counts[index] += 1

        return count

    @property
    def count(self) -> int:
        """Passes since the last `begin`; Also 0 if hooks are not called, as with compiled autograd."""
        counted = max(self._counts, default=0)
        return counted + self._missed if counted else 0

    def begin(self) -> None:
        self._missed = 0
        for index in range(len(self._counts)):
            self._counts[index] = 0

    def remove(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
