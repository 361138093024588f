"""The codec of one queue: its type, checked on the way in and on the way out.

Pydantic does the work and is imported when the first queue with a type is made.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Generic, TypeVar, cast, get_args, get_origin

from postrow.errors import BadArgumentError, PayloadError, PayloadTypeError
from postrow.payload import path as paths
from postrow.payload import plain
from postrow.payload.roundtrip import first_difference, first_not_unicode

if TYPE_CHECKING:
    from pydantic import TypeAdapter, ValidationError

T = TypeVar("T")

_JSON = "Invalid JSON"  # pydantic's words; what we write is JSON, so this is about its limits
_JSON_HINT = "A queue with a type carries about 200 levels, and integers of 4,300 digits. Plain JSON carries more."
_ANY = (None, Any, object)  # compared, not hashed: not every type can be
_BYTES_HINT = (
    "In a pydantic model, bytes are UTF-8 text unless it says: "
    'model_config = ConfigDict(ser_json_bytes="base64", val_json_bytes="base64").'
)


class Codec(Generic[T]):
    """Turns the payloads of one queue into JSON text and back.

    `type_` is what the queue carries: a dataclass, a pydantic model, a TypedDict, or any type that pydantic
    can read and write as JSON. None (or Any) is plain JSON: what `encode` and `decode` of this package do.

    Raises:
        BadArgumentError: pydantic can make nothing of the type; the message says why.
    """

    def __init__(self, type_: type[T] | Any | None) -> None:
        self.type_name = _name_of(type_)
        self._container: type | None = _plain_container(type_)
        self._adapter: TypeAdapter[Any] | None = None
        if type_ not in _ANY and self._container is None:
            self._adapter = _adapter_of(type_, self.type_name)
        # whether it carries any JSON: what is stored fits it, whatever it is
        self.is_plain = self._adapter is None and self._container is None

    def __repr__(self) -> str:
        return f"Codec({self.type_name})"

    def encode(self, value: T, *, what: str = "payload") -> str:
        """The JSON text of a payload of this queue's type; it will come back equal.

        Raises:
            PayloadError: the value is not of the type, or would not come back equal; the message names the
                field.
            PayloadUnicodeError: a text in it has a NUL character or a lone surrogate.
        """
        if self._adapter is None:
            if self._container is not None and not isinstance(value, self._container):
                raise PayloadError(f"{what}: {self._expected(value)}")
            return plain.encode(value, what=what)
        try:
            data = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings="error")
        except Exception as error:  # the user's own serializers run in there, and may raise anything
            raise self._why_not_written(value, error, what) from error
        text = plain.encode(data, what=what)
        back = self._read_back(text, what)
        if back != value and (difference := first_difference(value, back)):
            raise self._not_carried(what, *difference)
        return text

    def encode_lines(self, values: Sequence[T], *, what: Callable[[int], str]) -> str:
        """`encode` for many payloads, one a line; `what` gives the name of one by its index."""
        if self.is_plain:
            return plain.encode_lines(values, what=what)
        return "\n".join([self.encode(value, what=what(n)) for n, value in enumerate(values)])

    def decode(self, text: str | bytes) -> T:
        """The payload of a stored JSON text.

        Raises:
            PayloadTypeError: what is stored does not fit the type; the message says the type and the field.
        """
        if self._adapter is None:
            try:
                value = plain.decode(text)
            except PayloadError as error:
                raise PayloadTypeError(f"the stored payload cannot be read: {error}") from error
            if self._container is not None and not isinstance(value, self._container):
                raise self._misfit(f"payload: {self._expected(value)}")
            return cast("T", value)
        try:
            return cast("T", self._adapter.validate_json(text))
        except Exception as error:  # the user's own validators run in there, and may raise anything
            raise self._misfit(_problem("payload", error)) from error

    def _read_back(self, text: str, what: str) -> Any:
        assert self._adapter is not None
        try:
            return self._adapter.validate_json(text)
        except Exception as error:  # as in decode
            problem = _problem(what, error)
            raise PayloadError(self._of_this_queue(problem), hint=_JSON_HINT if _JSON in problem else None) from error

    def _why_not_written(self, value: object, error: Exception, what: str) -> PayloadError:
        """Pydantic says what it met, but not where: look for the place."""
        assert self._adapter is not None
        try:
            if "utf-8" in str(error) and (found := first_not_unicode(value)):
                place = paths.join(what, found[0])
                if isinstance(found[1], bytes):
                    return PayloadError(f"{place}: bytes that are not UTF-8.", hint=_BYTES_HINT)
                plain.encode(found[1], what=place)  # raises, with the reason
            data = self._adapter.dump_python(value, mode="json", by_alias=True, round_trip=True, warnings=False)
            back = self._read_back(plain.encode(data, what=what), what)
            if difference := first_difference(value, back, exact=True):
                return self._not_carried(what, *difference)
        except PayloadError as found:
            return found
        except Exception:  # noqa: BLE001, S110 -- the first error says it better
            pass
        return PayloadError(self._of_this_queue(f"{what}: {_first_line(error)}"))

    def _not_carried(self, what: str, steps: tuple[object, ...], problem: str) -> PayloadError:
        return PayloadError(
            self._of_this_queue(f"{paths.join(what, steps)}: {problem}"),
            hint="A payload must come back equal to what was sent: send the declared type exactly.",
        )

    def _of_this_queue(self, problem: str) -> str:
        return f"{problem} (the type of this queue: {self.type_name})"

    def _expected(self, value: object) -> str:
        return f"should be a {self.type_name}, is a {type(value).__name__}"

    def _misfit(self, problem: str) -> PayloadTypeError:
        return PayloadTypeError(
            f"the stored payload does not fit the type of its queue, {self.type_name}: {problem}",
            hint="Mend the producer, or let the type accept what is stored already.",
        )


def _adapter_of(type_: Any, name: str) -> TypeAdapter[Any]:
    from pydantic import ConfigDict, PydanticUserError, TypeAdapter  # noqa: PLC0415 -- see above
    from pydantic.errors import PydanticSchemaGenerationError, PydanticUndefinedAnnotation  # noqa: PLC0415
    from typing_extensions import TypeAliasType  # noqa: PLC0415

    # This holds for plain dataclasses and TypedDicts, at any depth. Pydantic's own classes keep their config.
    config = ConfigDict(
        ser_json_bytes="base64",
        val_json_bytes="base64",
        ser_json_timedelta="iso8601",
        ser_json_inf_nan="constants",  # so that our writer meets them, and refuses them with their path
        allow_inf_nan=False,
    )
    try:
        # An alias, because TypeAdapter takes no config together with a class that could have its own. Its
        # name is nothing that an annotation could mean: pydantic looks them up among the aliases around, too.
        alias: Any = TypeAliasType(f"the type {name}", type_)
        return TypeAdapter(alias, config=config)
    except (
        PydanticUserError,
        PydanticSchemaGenerationError,
        PydanticUndefinedAnnotation,
        TypeError,
    ) as error:
        raise BadArgumentError(
            f"the type {name} cannot be the payload of a queue: {_first_line(error)}",
            hint="Use a dataclass, a pydantic model, a TypedDict (before Python 3.12 the one of "
            "typing_extensions), or None for plain JSON.",
        ) from error


def _plain_container(type_: Any) -> type[dict[Any, Any] | list[Any]] | None:
    """`dict` or `list` where their content is any JSON: no need to ask pydantic."""
    root = get_origin(type_) or type_
    content = get_args(type_)
    if root is dict and (not content or content == (str, Any)):
        return dict
    return list if root is list and (not content or content == (Any,)) else None


def _name_of(type_: Any) -> str:
    if type_ in _ANY:
        return "JSON value"
    return type_.__qualname__ if isinstance(type_, type) and not get_args(type_) else str(type_)


def _problem(what: str, error: Exception) -> str:
    """The first thing that pydantic found, with the path; without the value, which may be a secret."""
    from pydantic import ValidationError  # noqa: PLC0415 -- see above

    if not isinstance(error, ValidationError):
        return f"{what}: {type(error).__name__}: {_first_line(error)}"
    return _first_problem(what, error)


def _first_problem(what: str, error: ValidationError) -> str:
    first, *others = error.errors(include_url=False, include_context=False)
    more = f" (and {len(others)} more)" if others else ""
    return f"{paths.join(what, first['loc'])}: {first['msg']}{more}"


def _first_line(error: Exception) -> str:
    lines = str(error).removeprefix("Pydantic serializer warnings:").strip().splitlines()
    return lines[0] if lines else type(error).__name__
