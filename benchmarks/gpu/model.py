"""Models without weights: the tiny model's tokenizer, the shape of one that has a shipped cost profile."""

import json
import shutil
from pathlib import Path
from typing import Any, Final

from gateway.config.profiles import shipped_parts
from gateway.cost.profile import Model
from lab.engine import tiny_model

_QWEN3: Final = {
    "attention_bias": False,
    "head_dim": 128,
    "hidden_act": "silu",
    "max_position_embeddings": 262_144,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "use_sliding_window": False,
    "vocab_size": 151_936,
}
_SHAPES: Final[dict[str, dict[str, Any]]] = {
    "moe": {  # Qwen3-Coder-30B-A3B-Instruct
        **_QWEN3,
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        "hidden_size": 2_048,
        "intermediate_size": 6_144,
        "num_hidden_layers": 48,
        "num_attention_heads": 32,
        "num_key_value_heads": 4,
        "rope_theta": 1e7,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 768,
        "norm_topk_prob": True,
        "num_experts": 128,
        "num_experts_per_tok": 8,
    },
    "dense": {  # Qwen3-14B
        **_QWEN3,
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "hidden_size": 5_120,
        "intermediate_size": 17_408,
        "num_hidden_layers": 40,
        "num_attention_heads": 40,
        "num_key_value_heads": 8,
        "rope_theta": 1e6,
    },
    "tiny": {},
}


def write(name: str, at: Path) -> None:
    shutil.copytree(tiny_model.build(), at)
    own = json.loads((at / "config.json").read_text())
    tokens = {key: own[key] for key in ("bos_token_id", "eos_token_id", "pad_token_id")}
    (at / "config.json").write_text(json.dumps({**(_SHAPES[name] or own), **tokens}))


def part(name: str) -> Model:
    """Of the shipped cost profile. A rehearsal takes some other model's."""
    return shipped_parts().models["qwen3-coder-30b-a3b" if name == "moe" else "qwen3-14b"]
