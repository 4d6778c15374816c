# SPDX-License-Identifier: MIT OR Apache-2.0
"""What the scripted engine says and how fast: one `Script` a scenario."""

from __future__ import annotations

from dataclasses import dataclass

from engine.errors import CheckpointError, NumericsError, RondoError
from engine.fake_compare import FASTER, CompareScript

CONTEXT_LIMIT = 8192
ROOF_GBPS = 41.0

ANSWER = """Decoding one token reads **every weight once** and does very little arithmetic with it.

For a batch of one, each weight takes part in one multiply and one add, so the time of a round is close to

```python
def round_ms(weight_bytes: int, read_gbps: float) -> float:
    return weight_bytes / read_gbps / 1e6
```

That leaves three ways to go faster:

1. Read fewer bytes, with a smaller number format.
2. Read them closer to the roof of this machine.
3. Commit **more tokens per round**, which is what drafting does.

| lever | changes | figure to watch |
|:--|:--|--:|
| format | bytes per round | GB/s |
| kernels | share of the roof | % of roof |
| drafting | tokens per round | acceptance |

> A round that is twice as long and commits three times the tokens is still a win.

The panel on the right shows all three while this text is written."""

THOUGHT = """The question is about memory traffic. A batch of one reads each weight once per round, so the
byte count divided by the read rate gives the floor. I should name the three levers and the figure
that shows each."""


@dataclass(frozen=True, slots=True)
class Script:
    """What the scripted engine does. Times in seconds or milliseconds as named."""

    name: str = "steady"
    answer: str = ANSWER
    thought: str = ""
    repeat: int = 1  # how often the answer is said
    load_s: float = 0.15
    load_bytes: int = 16_400_000
    load_error: RondoError | None = None
    fail_loads_after: int = 0  # loads that succeed before `load_error` strikes
    prompt_tps: float = 40_000.0
    round_ms: float = 12.0
    committed: tuple[int, ...] = (3, 1, 4, 2, 4, 3, 1, 2)
    fail_after_rounds: int = -1
    stall_after_rounds: int = -1
    stall_s: float = 0.0
    demo: bool = False
    compare: CompareScript = FASTER


SCRIPTS: dict[str, Script] = {
    script.name: script
    for script in (
        Script(),
        Script("demo", demo=True),
        Script("thinking", thought=THOUGHT),
        Script("burst", repeat=40, round_ms=0.4),
        Script("slow-prefill", prompt_tps=60.0),
        Script("stall", stall_after_rounds=12, stall_s=12.0),
        Script("error", fail_after_rounds=10),
        Script(
            "load-failure",
            load_error=CheckpointError(
                "model-00002-of-00003.safetensors is 1 048 576 bytes short of what its header names.",
                kept="Nothing was changed.",
                next_step="Copy this shard again, then open the folder once more.",
            ),
        ),
        Script("slow-load", load_s=6.0, load_bytes=17_200_000_000),
        Script("compare-worse", compare=CompareScript(effect_pct=2.0)),
        Script("compare-equal", compare=CompareScript(effect_pct=0.0, noise_pct=1.2)),
        Script("compare-texts-differ", compare=CompareScript(same_text=False)),
        Script("compare-same-path", compare=CompareScript(same_path=True)),
        Script(
            "compare-failure",
            compare=CompareScript(
                fail_after_runs=142,
                error=NumericsError(
                    "Layer 5 (gated_delta) produced a NaN.",
                    kept="The model stays loaded.",
                    next_step="Compare again; if it returns, copy the report.",
                ),
            ),
        ),
    )
}
