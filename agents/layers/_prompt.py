"""`@prompt`: a function whose docstring is the template of a prompt."""

from __future__ import annotations

import functools
import inspect
import logging
import string
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, cast, overload

from ...backends import Backend
from ...backends.override import replaced
from ...messages import Message, OutputMode, OutputSchema, Request
from ...messages.options import check_options
from ._override import read_backend

__all__ = ["Prompt", "fill_template", "prompt"]

logger = logging.getLogger("anabranch.agents")

P = ParamSpec("P")
Q = ParamSpec("Q")
T = TypeVar("T")


class Prompt(Generic[P]):
    """The result of `@prompt`. Calling it returns the text.

    It works on methods too, and then fills in `{self.name}` and the like.
    """

    def __init__(self, function: Callable[P, object], owner: object = None) -> None:
        functools.update_wrapper(self, function)
        self._function = function
        self._owner = (owner,) if owner is not None else ()
        self._signature = inspect.signature(function)
        name = function.__qualname__
        if not function.__doc__:
            raise TypeError(f"{name!r} needs a docstring, the template of @prompt")
        try:
            list(string.Formatter().parse(function.__doc__))
        except ValueError as error:
            raise ValueError(
                f"the docstring of {name!r} is not a template: {error}. "
                "Write a brace itself twice: {{ or }}"
            ) from None
        self._template = inspect.cleandoc(function.__doc__)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> str:
        """Return the docstring with each `{name}` filled in.

        Raises `TypeError` if the arguments do not fit the function, `LookupError` for a name that
        is neither a parameter nor in the mapping that the body returned.
        """
        bound = self._signature.bind(*self._owner, *args, **kwargs)
        bound.apply_defaults()
        values = dict(bound.arguments)
        more: object = cast("Callable[..., object]", self._function)(*bound.args, **bound.kwargs)
        if isinstance(more, Mapping):
            values |= cast("Mapping[str, Any]", more)
        elif more is not None:
            raise TypeError(
                f"the body of the prompt {self._function.__qualname__!r} must return None or a"
                f" mapping with more values, not {more!r:.200}"
            )
        return fill_template(self._template, values, self._function.__qualname__)

    @overload
    def with_backend(
        self,
        backend: Backend | str,
        *,
        output_type: None = None,
        **options: Any,
    ) -> Callable[P, Coroutine[Any, Any, str]]: ...
    @overload
    def with_backend(
        self,
        backend: Backend | str,
        *,
        output_type: type[T] | OutputSchema[T],
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
        **options: Any,
    ) -> Callable[P, Coroutine[Any, Any, T]]: ...
    # A type checker cannot infer the type from a union, a `Literal` and other special forms.
    @overload
    def with_backend(
        self,
        backend: Backend | str,
        *,
        output_type: object,
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
        **options: Any,
    ) -> Callable[P, Coroutine[Any, Any, Any]]: ...
    def with_backend(
        self,
        backend: Backend | str,
        *,
        output_type: Any = None,
        output_mode: OutputMode | None = None,
        output_retries: int = 2,
        **options: Any,
    ) -> Callable[P, Coroutine[Any, Any, Any]]:
        """Return an async function that sends the text to `backend` and returns the reply.

            rate = rating.with_backend(backend, output_type=Rating)
            (await rate("What a film!")).stars

        With `output_type` it returns a value of that type. This and the two other arguments are as
        in `backend.complete`. `options` have the wire's names. It raises the errors of
        `backend.complete`.
        """
        name = self._function.__qualname__
        check_options(options, f"the prompt {name!r}")
        own = read_backend(backend)
        schema = None if output_type is None else OutputSchema[Any].of(output_type)

        async def ask(*args: P.args, **kwargs: P.kwargs) -> Any:
            question = Message(role="user", content=self(*args, **kwargs))
            logger.debug("%s asks: %s", name, question.content)
            request = Request((question,), (), options)
            if schema is None:
                answer = await replaced(own).complete(request)
                logger.debug("%s is answered: %s", name, answer)
                return answer.content or ""
            typed = await replaced(own).complete(
                request, output_type=schema, output_mode=output_mode, output_retries=output_retries
            )
            logger.debug("%s is answered: %s", name, typed)
            return typed.output

        return ask

    @overload
    def __get__(self, instance: None, owner: type[Any]) -> Prompt[P]: ...
    @overload
    def __get__(
        self: Prompt[Concatenate[Any, Q]], instance: object, owner: type[Any]
    ) -> Prompt[Q]: ...
    def __get__(self, instance: object | None, owner: type[Any]) -> Any:
        return self if instance is None else Prompt(self._function, instance)

    def __repr__(self) -> str:
        return f"<prompt {self._function.__qualname__}>"


def prompt(function: Callable[P, object]) -> Prompt[P]:
    """Make a function whose docstring is a template.

        @prompt
        def greeting(name: str, language: str = "English") -> None:
            \"\"\"Greet {name} in {language}.\"\"\"

        greeting("Ada")     # "Greet Ada in English."

    Fields are those of `str.format`: `{name}`, `{person.age:>3}`. Write a brace itself twice. A
    value is never read as a template again. The body may return a mapping with more values. Raises
    `TypeError` without a docstring, `ValueError` if it is not a template.
    """
    return Prompt(function)


def fill_template(template: str, values: Mapping[str, Any], name: str) -> str:
    """Return a template with its fields filled in; raise `LookupError` for a missing value."""
    try:
        return string.Formatter().vformat(template, (), values)
    except (KeyError, IndexError) as error:
        raise LookupError(
            f"the prompt {name!r} has no value for {error}: it has {', '.join(values) or 'none'}"
        ) from None
