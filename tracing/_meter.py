"""What the conventions for generative AI want measured of whoever asks models."""

from __future__ import annotations

from typing import Any

from opentelemetry.metrics import MeterProvider

from . import _genai as names

__all__ = ["Meter"]


class Meter:
    """The two measures that the conventions want of whoever asks models."""

    def __init__(self, provider: MeterProvider) -> None:
        meter = provider.get_meter("anabranch")
        self._duration = meter.create_histogram(
            names.OPERATION_DURATION,
            unit="s",
            description="GenAI operation duration.",
            explicit_bucket_boundaries_advisory=[0.01 * 2**power for power in range(14)],
        )
        self._tokens = meter.create_histogram(
            names.TOKEN_USAGE,
            unit="{token}",
            description="Number of input and output tokens used.",
            explicit_bucket_boundaries_advisory=[4**power for power in range(14)],
        )

    def count(
        self,
        asked: dict[str, Any],
        replied: dict[str, Any],
        error: BaseException | None,
        seconds: float,
    ) -> None:
        """Count a request that has ended, by what its span says."""
        every = asked | replied
        kept = (
            *(names.OPERATION, names.PROVIDER_NAME, names.REQUEST_MODEL, names.RESPONSE_MODEL),
            *(names.SERVER_ADDRESS, names.SERVER_PORT),
        )
        said = {name: every[name] for name in kept if name in every}
        for kind, name in (("input", names.INPUT_TOKENS), ("output", names.OUTPUT_TOKENS)):
            if name in replied:
                self._tokens.record(replied[name], said | {names.TOKEN_TYPE: kind})
        if error is not None:
            said[names.ERROR_TYPE] = names.error_type(error)
        self._duration.record(seconds, said)
