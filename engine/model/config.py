# SPDX-License-Identifier: MIT OR Apache-2.0
"""The shape of a hybrid model, read from a published config.json and refused where it cannot run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from engine.errors import UnsupportedModelError
from engine.model.config_fields import ConfigFields, shortened

LINEAR = "linear_attention"
FULL = "full_attention"
CONV_WIDTH = 4
_EXPERTS = ("experts", "experts_per_token", "expert_size")

_DENSE_TYPES = ("qwen3_5", "qwen3_5_text")
_MOE_TYPES = ("qwen3_5_moe", "qwen3_5_moe_text")
_SUPPORTED = (*_DENSE_TYPES, *_MOE_TYPES)
_REFUSED = {
    "qwen4_exp": "block-sparse attention with an indexer, hyper-connections and an n-gram table",
    "qwen3_next": "the fused tensors in_proj_qkvz and in_proj_ba",
}
_MAX_INTEGER = {
    "num_hidden_layers": 1024,
    "vocab_size": 1 << 22,
    "max_position_embeddings": 1 << 24,
    "intermediate_size": 1 << 20,
    "hidden_size": 1 << 17,
    "num_experts": 1 << 12,
}
_MAX_HEADS = 4096
_MAX_HEAD_DIM = 1024


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Shapes and constants of one model; sizes are element counts unless a name says otherwise.

    `layer_types` holds one of LINEAR and FULL for every layer. `tied` and `mtp_layers` are what config.json
    declares until the loader replaces them by what the tensors show.

    In a mixture-of-experts model every layer has `experts` routed experts, of which a token runs
    `experts_per_token`, and one shared expert that runs for every token; `intermediate_size` is the shared
    one's. All three expert fields are 0 in a dense model.
    """

    hidden_size: int
    layers: int
    layer_types: tuple[str, ...]
    intermediate_size: int
    attention_heads: int
    kv_heads: int
    head_dim: int
    key_heads: int  # of the gated delta layers, as are the next three
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    rms_eps: float
    rope_theta: float
    rotary_dim: int
    vocab_size: int
    context_tokens: int
    tied: bool
    mtp_layers: int
    experts: int = 0
    experts_per_token: int = 0
    expert_size: int = 0  # intermediate size of one routed expert

    def geometry(self) -> dict[str, Any]:
        """Every field by name, those of experts only where there are some: names files that are kept."""
        return {
            name: value for name, value in asdict(self).items() if value or name not in _EXPERTS
        }

    @property
    def attention_width(self) -> int:
        """Columns of o_proj: all query heads side by side."""
        return self.attention_heads * self.head_dim

    @property
    def q_rows(self) -> int:
        """Rows of q_proj: query and output gate of every head, interleaved per head."""
        return 2 * self.attention_width

    @property
    def kv_rows(self) -> int:
        """Rows of k_proj and of v_proj."""
        return self.kv_heads * self.head_dim

    @property
    def key_width(self) -> int:
        """Channels of all key heads; queries have as many."""
        return self.key_heads * self.key_dim

    @property
    def value_width(self) -> int:
        """Channels of all value heads: rows of in_proj_z, columns of out_proj."""
        return self.value_heads * self.value_dim

    @property
    def qkv_rows(self) -> int:
        """Rows of in_proj_qkv and channels of the convolution, laid out q | k | v."""
        return 2 * self.key_width + self.value_width

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the full-attention layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == FULL)

    @property
    def gdn_layers(self) -> tuple[int, ...]:
        """Indices of the gated delta layers."""
        return tuple(i for i, kind in enumerate(self.layer_types) if kind == LINEAR)

    @property
    def attention_layer_parameters(self) -> int:
        """Parameters of one full-attention layer, its MLP and norms included."""
        mixer = self.hidden_size * (self.q_rows + 2 * self.kv_rows + self.attention_width)
        return mixer + 2 * self.head_dim + self._mlp_and_norms

    @property
    def gdn_layer_parameters(self) -> int:
        """Parameters of one gated delta layer, its MLP and norms included."""
        rows = self.qkv_rows + 2 * self.value_width + 2 * self.value_heads
        small = self.conv_width * self.qkv_rows + 2 * self.value_heads + self.value_dim
        return self.hidden_size * rows + small + self._mlp_and_norms

    @property
    def parameters(self) -> int:
        """Parameters of the text model without the MTP head; a tied head counts once."""
        tables = (1 if self.tied else 2) * self.vocab_size * self.hidden_size
        layers = (
            len(self.attention_layers) * self.attention_layer_parameters
            + len(self.gdn_layers) * self.gdn_layer_parameters
        )
        return tables + layers + self.hidden_size

    @property
    def expert_parameters(self) -> int:
        """Parameters of one routed expert."""
        return 3 * self.hidden_size * self.expert_size

    @property
    def active_parameters(self) -> int:
        """Parameters that one token passes: all but the routed experts it does not run."""
        idle = self.layers * (self.experts - self.experts_per_token)
        return self.parameters - idle * self.expert_parameters

    def kv_bytes_per_token(self, *, scaled: bool = False) -> int:
        """Key and value bytes of one token over all attention layers, the MTP layer's too.

        BF16, or e4m3 with a float32 scale for each head if `scaled`.
        """
        return self.kv_layer_bytes(scaled=scaled) * (len(self.attention_layers) + self.mtp_layers)

    def kv_layer_bytes(self, *, scaled: bool = False) -> int:
        """Key and value bytes of one token in one attention layer."""
        return 2 * (self.kv_rows + 4 * self.kv_heads if scaled else 2 * self.kv_rows)

    @property
    def recurrent_bytes(self) -> int:
        """Bytes of one sequence's gated delta states, float32: what a round reads, and may write, of state."""
        return len(self.gdn_layers) * 4 * self.value_heads * self.key_dim * self.value_dim

    @property
    def state_bytes(self) -> int:
        """Bytes of one sequence's gated delta states (float32) and convolution tails (BF16)."""
        tail = 2 * (self.conv_width - 1) * self.qkv_rows
        return self.recurrent_bytes + len(self.gdn_layers) * tail

    @property
    def _mlp_and_norms(self) -> int:
        mlp = 3 * self.hidden_size * self.intermediate_size
        if self.experts:  # the router, the gate of the shared expert, the routed experts
            mlp += (self.experts + 1) * self.hidden_size + self.experts * self.expert_parameters
        return mlp + 2 * self.hidden_size

    @staticmethod
    def from_dict(config: Mapping[str, Any], *, file: str = "config.json") -> ModelConfig:
        """Read a parsed config.json, nested (`text_config`) or flat.

        Args:
            config: the JSON object; `file` is the name that errors show.

        Raises:
            UnsupportedModelError: a well-formed model this engine does not run.
            CheckpointError: a field that is missing or makes no sense.
        """
        text, moe = _text_part(config, file)
        fields = ConfigFields(text, file)
        _refuse_variants(fields)
        experts, per_token, expert_size = _experts(fields) if moe else _no_experts(fields)
        shared = "shared_expert_intermediate_size" if moe else "intermediate_size"
        layers = fields.integer("num_hidden_layers", _MAX_INTEGER["num_hidden_layers"])
        head_dim = fields.integer("head_dim", _MAX_HEAD_DIM)
        theta, rotary_dim = _rope(fields, head_dim)
        # It may stand in either place; transformers writes an idle false at the top level.
        ties = (fields.get("tie_word_embeddings"), config.get("tie_word_embeddings"))
        tied = [fields.boolean("tie_word_embeddings", tie) for tie in ties if tie is not None]
        model = ModelConfig(
            hidden_size=fields.integer("hidden_size", _MAX_INTEGER["hidden_size"]),
            layers=layers,
            layer_types=_layer_types(fields, layers),
            intermediate_size=fields.integer(shared, _MAX_INTEGER["intermediate_size"]),
            attention_heads=fields.integer("num_attention_heads", _MAX_HEADS),
            kv_heads=fields.integer("num_key_value_heads", _MAX_HEADS),
            head_dim=head_dim,
            key_heads=fields.integer("linear_num_key_heads", _MAX_HEADS),
            value_heads=fields.integer("linear_num_value_heads", _MAX_HEADS),
            key_dim=fields.integer("linear_key_head_dim", _MAX_HEAD_DIM),
            value_dim=fields.integer("linear_value_head_dim", _MAX_HEAD_DIM),
            conv_width=fields.integer("linear_conv_kernel_dim", 64),
            rms_eps=fields.number("rms_norm_eps", 1.0),
            rope_theta=theta,
            rotary_dim=rotary_dim,
            vocab_size=fields.integer("vocab_size", _MAX_INTEGER["vocab_size"]),
            context_tokens=fields.integer(
                "max_position_embeddings", _MAX_INTEGER["max_position_embeddings"]
            ),
            tied=any(tied),
            mtp_layers=_mtp_layers(fields),
            experts=experts,
            experts_per_token=per_token,
            expert_size=expert_size,
        )
        _check_together(model, fields)
        return model


def _text_part(config: Mapping[str, Any], file: str) -> tuple[Mapping[str, Any], bool]:
    """The fields of the language model and whether it has experts, after its types have been accepted."""
    if "model_type" not in config:
        ConfigFields(config, file).absent("model_type", null=False)
    outer = config["model_type"]
    _accept_type(outer, "model_type", file)
    text = config.get("text_config")
    if text is None:
        return config, outer in _MOE_TYPES
    if not isinstance(text, Mapping):
        ConfigFields({}, file).wrong("text_config", "an object", text)
    inner = text.get("model_type")
    if inner is not None:
        _accept_type(inner, "text_config.model_type", file)
        if (inner in _MOE_TYPES) != (outer in _MOE_TYPES):
            fields = ConfigFields({}, file)
            fields.wrong("text_config.model_type", f"of the kind of model_type ({outer})", inner)
    return text, outer in _MOE_TYPES


def _accept_type(model_type: Any, field: str, file: str) -> None:
    if model_type in _SUPPORTED:
        return
    reason = ""
    for name, why in _REFUSED.items():
        if isinstance(model_type, str) and model_type.startswith(name):
            reason = f" It has {why}."
    raise UnsupportedModelError(
        f"{file}: {field} is {shortened(model_type)}; this engine runs {', '.join(_SUPPORTED)}."
        + reason,
        next_step="Open a model of the Qwen3.5, 3.6 or 3.8 family, such as Qwen3.8-27B.",
    )


def _experts(fields: ConfigFields) -> tuple[int, int, int]:
    """(experts, those of a token, their intermediate size) of a model whose every layer has them."""
    family = "Open a model of the Qwen3.5 family whose every layer routes to experts."
    for name, only in (
        ("mlp_only_layers", []),
        ("decoder_sparse_step", 1),
        ("norm_topk_prob", True),
    ):
        value = fields.get(name)
        if value is not None and value != only:
            fields.unsupported(name, shortened(only), value, family)
    experts = fields.integer("num_experts", _MAX_INTEGER["num_experts"])
    per_token = fields.integer("num_experts_per_tok", _MAX_INTEGER["num_experts"])
    if per_token > experts:
        fields.wrong("num_experts_per_tok", f"at most num_experts ({experts})", per_token)
    size = fields.integer("moe_intermediate_size", _MAX_INTEGER["intermediate_size"])
    return experts, per_token, size


def _no_experts(fields: ConfigFields) -> tuple[int, int, int]:
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if fields.get(name):
            types = " or ".join(_MOE_TYPES)
            fields.unsupported(
                name,
                "dense layers only under this model_type",
                fields.get(name),
                f"Use the published config.json; a model with experts has the type {types}.",
            )
    return 0, 0, 0


def _refuse_variants(fields: ConfigFields) -> None:
    """Options of the architecture that would run a wrong model silently."""
    family = "Open a model of the Qwen3.5, 3.6 or 3.8 family with its published config.json."
    act = fields.get("hidden_act")
    if act not in (None, "silu", "swish"):
        fields.unsupported("hidden_act", "silu", act, family)
    if fields.get("attention_bias") not in (None, False):
        fields.unsupported("attention_bias", "false", fields.get("attention_bias"), family)
    if fields.get("attn_output_gate") not in (None, True):
        fields.unsupported("attn_output_gate", "true", fields.get("attn_output_gate"), family)
    gate = fields.get("output_gate_type")
    if gate not in (None, "swish", "silu"):
        fields.unsupported("output_gate_type", "swish", gate, family)
    if fields.get("mtp_use_dedicated_embeddings") not in (None, False):
        value = fields.get("mtp_use_dedicated_embeddings")
        fields.unsupported("mtp_use_dedicated_embeddings", "false", value, family)


def _layer_types(fields: ConfigFields, layers: int) -> tuple[str, ...]:
    kinds = fields.get("layer_types")
    if kinds is None:
        interval = fields.get("full_attention_interval")
        if interval is None:
            interval = 4
        elif isinstance(interval, bool) or not isinstance(interval, int) or interval < 1:
            fields.wrong("full_attention_interval", "a whole number above 0", interval)
        return tuple(FULL if (i + 1) % interval == 0 else LINEAR for i in range(layers))
    if not isinstance(kinds, list | tuple):
        fields.wrong("layer_types", "a list", kinds)
    for index, kind in enumerate(kinds):
        if kind not in (LINEAR, FULL):
            next_step = "Open a model whose layers are of these two kinds."
            fields.unsupported(f"layer_types[{index}]", f"{LINEAR} and {FULL}", kind, next_step)
    if len(kinds) != layers:
        fields.wrong("layer_types", f"{layers} entries, as num_hidden_layers says", len(kinds))
    return tuple(kinds)


def _rope(fields: ConfigFields, head_dim: int) -> tuple[float, int]:
    """(theta, number of rotated dimensions); nested parameters win over flat fields."""
    nested: dict[str, Any] = {}
    for name in ("rope_scaling", "rope_parameters"):
        value = fields.get(name)
        if value is None:
            continue
        if not isinstance(value, Mapping):
            fields.wrong(name, "an object", value)
        nested.update(value)
        kind = value.get("rope_type", value.get("type", "default"))
        if kind not in ("default", "mrope"):
            fields.unsupported(
                f"{name}.rope_type",
                "the type default (the native context)",
                kind,
                'Set rope_type to "default" in config.json and keep prompts within the native context.',
            )
    theta = nested.get("rope_theta", fields.get("rope_theta"))
    if theta is None:
        null = "rope_theta" in nested or "rope_theta" in fields.values
        fields.absent("rope_parameters.rope_theta", null=null)
    factor = nested.get("partial_rotary_factor", fields.get("partial_rotary_factor"))
    fraction = fields.number("partial_rotary_factor", 1.0, 0.25 if factor is None else factor)
    rotary_dim = int(head_dim * fraction)
    if rotary_dim < 2 or rotary_dim % 2:
        fields.wrong(
            "partial_rotary_factor", "such that an even number of dimensions turns", factor
        )
    return fields.number("rope_theta", 1e12, theta), rotary_dim


def _mtp_layers(fields: ConfigFields) -> int:
    declared = fields.get("mtp_num_hidden_layers")
    if declared is None:
        return 0
    count = fields.integer("mtp_num_hidden_layers", 64, smallest=0)
    if count > 1:
        next_step = "Set it to 0 in config.json and remove the mtp tensors to run without drafting."
        fields.unsupported("mtp_num_hidden_layers", "0 or 1", count, next_step)
    return count


def _check_together(model: ModelConfig, fields: ConfigFields) -> None:
    if model.attention_heads % model.kv_heads:
        fields.wrong(
            "num_attention_heads",
            f"a multiple of num_key_value_heads ({model.kv_heads})",
            model.attention_heads,
        )
    if model.value_heads % model.key_heads:
        fields.wrong(
            "linear_num_value_heads",
            f"a multiple of linear_num_key_heads ({model.key_heads})",
            model.value_heads,
        )
    if model.conv_width != CONV_WIDTH:
        fields.unsupported(
            "linear_conv_kernel_dim",
            f"a convolution of width {CONV_WIDTH}",
            model.conv_width,
            "Open a model of the Qwen3.5, 3.6 or 3.8 family.",
        )
