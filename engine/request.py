# SPDX-License-Identifier: MIT OR Apache-2.0
"""What a request asks for, checked before any model is needed."""

from __future__ import annotations

import secrets

from engine.api import GenerateRequest
from engine.errors import UsageError
from engine.spec.sampling import Sampling


def checked_sampling(request: GenerateRequest) -> Sampling:
    """How the request samples, with a drawn seed where it names none.

    Raises UsageError for values out of range, an empty stop string, and a thinking choice for a prompt that
    goes without the chat template, which alone could follow it.
    """
    if request.max_tokens < 1:
        raise UsageError(
            f"max_tokens {request.max_tokens} is not accepted.", next_step="Use 1 or more."
        )
    if "" in request.stop:
        raise UsageError(
            "An empty stop string is not accepted: it stands before every answer.",
            next_step="Leave it out, or give the text before which the answer is to end.",
        )
    if request.thinking is not None and (request.prompt is not None or request.token_ids):
        raise UsageError(
            "Thinking is switched by the chat template, and a raw prompt goes without it.",
            next_step="Leave the thinking choice out, or send the prompt as a message.",
        )
    seed = secrets.randbits(63) if request.seed is None else request.seed
    return Sampling(request.temperature, request.top_p, request.top_k, request.min_p, seed)
