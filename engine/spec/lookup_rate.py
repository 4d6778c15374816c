# SPDX-License-Identifier: MIT OR Apache-2.0
"""How likely a looked-up line goes on for one more token, learned from every round (rho).

A beta-binomial rate for each bucket of (source, match length, copy run): the mean of the beta distribution
whose counts are the tokens of the line that the text followed and the lines it left, on top of a prior.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from engine.errors import UsageError
from engine.numbers import grouped

LOOKUP_SOURCES = ("local", "corpus", "both")
MATCH_LENGTHS = range(3, 9)
COPY_RUNS = (0, 1, 8, 24)  # first token count of each bin
LEAST_COUNTS = 20  # a bucket with fewer says nothing yet
PRIOR_WEIGHT = 50
MOST_COUNTS = 4000  # then a bucket is halved, so that it follows the text
_PRIOR_BYTES = 1 << 20
_LARGEST_COUNT = 1e15

Bucket = tuple[str, int, int]


def copy_run_bin(tokens: int) -> int:
    """The bin (its first count) of a run of `tokens` copied tokens: 0, 1 (to 7), 8 (to 23) or 24."""
    return next(first for first in reversed(COPY_RUNS) if tokens >= first)


class LookupRate:
    """Continuation rates by bucket; `learning` off freezes them.

    A bucket's prior counts for at most 50 observations. A bucket without prior and with fewer than 20
    observations has no rate; one without prior starts from a uniform beta (1, 1).
    """

    def __init__(
        self, prior: Mapping[Bucket, tuple[float, float]] | None = None, *, learning: bool = True
    ) -> None:
        self.learning = learning
        self._prior = {}
        for bucket, (successes, failures) in (prior or {}).items():
            total = successes + failures
            if total >= LEAST_COUNTS:
                share = min(PRIOR_WEIGHT, total) / total
                self._prior[bucket] = (successes * share, failures * share)
        self._counts: dict[Bucket, tuple[float, float]] = {}

    @staticmethod
    def read(path: str | Path) -> LookupRate:
        """Rates with the prior of a JSON file: {"local|8|3": [successes, failures], ...}.

        A key is source | match length | copy run, the last as the number of its bin: 0 for none, 1 for 1 to 7
        tokens, 2 for 8 to 23, 3 for more. Keys that start with _ are notes. Raises UsageError for a file that
        cannot be read or says anything else.
        """
        return LookupRate(read_prior(path))

    def rho(self, source: str, match_length: int, copy_run: int) -> float | None:
        """The rate for a match in `source` after `copy_run` copied tokens; None where nothing is known.

        Matches of fewer than 3 tokens have no rate.
        """
        bucket = _bucket(source, match_length, copy_run)
        successes, failures = self._counts.get(bucket, (0.0, 0.0))
        prior = self._prior.get(bucket)
        if prior is None:
            if successes + failures < LEAST_COUNTS:
                return None
            prior = (1.0, 1.0)
        successes += prior[0]
        return successes / (successes + failures + prior[1])

    def learn(
        self, source: str, match_length: int, copy_run: int, *, followed: int, missed: bool
    ) -> None:
        """Count `followed` tokens of a line that the text took, and whether the text then left the line.

        A line that ended, or a round that ended, while they still agreed is no miss: what would have come is
        not known.
        """
        if not self.learning or match_length not in MATCH_LENGTHS:
            return
        bucket = _bucket(source, match_length, copy_run)
        successes, failures = self._counts.get(bucket, (0.0, 0.0))
        successes, failures = successes + followed, failures + missed
        if successes + failures > MOST_COUNTS:
            successes, failures = successes / 2, failures / 2
        self._counts[bucket] = (successes, failures)

    def counts(self) -> dict[str, list[float]]:
        """What was learned, the prior left out, under the keys of a prior file."""
        return {
            f"{source}|{length}|{COPY_RUNS.index(run)}": [successes, failures]
            for (source, length, run), (successes, failures) in sorted(self._counts.items())
        }


def _bucket(source: str, match_length: int, copy_run: int) -> Bucket:
    return source, match_length, copy_run_bin(copy_run)


def read_prior(path: str | Path) -> dict[Bucket, tuple[float, float]]:
    """The counts of a prior file by bucket; UsageError names the key that is wrong."""
    try:
        with Path(path).open("rb") as file:
            data = file.read(_PRIOR_BYTES + 1)
    except OSError as error:
        raise UsageError(f"{path}: cannot read the prior: {error.strerror}.") from error
    try:
        if len(data) > _PRIOR_BYTES:
            raise ValueError(f"larger than {grouped(_PRIOR_BYTES)} bytes")
        values = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{path} is not a JSON file of lookup rates: {error}.") from error
    if not isinstance(values, dict):
        raise UsageError(f"{path} holds no JSON object of lookup rates.")
    prior = {}
    for key, counts in values.items():
        if key.startswith("_"):
            continue
        bucket = _parsed(key)
        if bucket is None:
            raise UsageError(
                f"{path}: {key[:80]!r} is not source|match length|copy run.",
                next_step="Use local, corpus or both, 3 to 8, and 0 to 3, as in local|8|3.",
            )
        if not _are_counts(counts):
            raise UsageError(
                f"{path}: {key} needs two counts that are not negative, [successes, failures]."
            )
        prior[bucket] = (float(counts[0]), float(counts[1]))
    return prior


def _parsed(key: str) -> Bucket | None:
    parts = key.split("|")
    if len(parts) != 3 or parts[0] not in LOOKUP_SOURCES:
        return None
    lengths = {str(length): length for length in MATCH_LENGTHS}
    runs = {str(index): first for index, first in enumerate(COPY_RUNS)}
    if parts[1] not in lengths or parts[2] not in runs:
        return None
    return parts[0], lengths[parts[1]], runs[parts[2]]


def _are_counts(counts: object) -> bool:
    return (
        isinstance(counts, list)
        and len(counts) == 2
        and all(isinstance(n, int | float) and not isinstance(n, bool) for n in counts)
        and all(0 <= n <= _LARGEST_COUNT for n in counts)  # also refuses NaN
    )
