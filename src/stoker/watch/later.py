"""A value that is made when somebody asks for it: rows and lines that stay on the disk until then."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Generic, TypeVar, overload

T = TypeVar("T")


class Again(partial[T]):
    """What makes a value that is too large to keep: it is made again when it is asked for again."""


class Later(Generic[T]):
    """A field of a data class that is given as a value, or as what makes it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = f"_{name}"

    @overload
    def __get__(self, instance: None, owner: type) -> Later[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> Later[T] | T:
        if instance is None:
            return self
        value: T | Callable[[], T] = vars(instance)[self._name]
        if not callable(value):
            return value
        made = value()
        if not isinstance(value, Again):
            vars(instance)[self._name] = made
        return made

    def __set__(self, instance: object, value: T | Callable[[], T]) -> None:
        vars(instance)[self._name] = value
