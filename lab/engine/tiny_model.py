"""A model directory made from nothing: a real tokenizer and a two-layer Qwen3 shape.

``build`` writes everything vLLM needs to serve the model with ``--load-format dummy``: no
weights and no download. The tokenizer is byte-level BPE, so every string survives encode and
decode, and it is trained on the Python standard library's own sources (English, JSON-like
literals and code), so the same interpreter always gives the same tokenizer.
"""

import hashlib
import json
import os
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CONTEXT_TOKENS = 262_144
"""The longest prompt plus reply; agents' first prompts alone run to 30,000 tokens."""

VOCABULARY = 16_384
END_OF_TURN = "<|im_end|>"
_SPECIAL = ("<|endoftext|>", "<|im_start|>", END_OF_TURN)
_VISIBLE = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
_CORPUS_BYTES = 9_000_000
_SPLIT = "|".join(
    (
        r"[^\r\n\p{L}\p{N}]?\p{L}+",  # a word with the blank or sign before it
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+\n*",  # punctuation and the line's end
        r"\s*\n+",
        r"\s+(?!\S)",  # indentation, less the blank that belongs to a word
        r"\s+",
    )
)
_TEMPLATE = Path(__file__).with_name("chat_template.jinja")


def default_directory() -> Path:
    """Where ``build`` puts the model when nobody says: the user's cache, one per fingerprint."""
    root = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return Path(root) / "turnpike" / f"tiny-model-{_fingerprint()}"


def build(directory: Path | None = None) -> Path:
    """Write the model to ``directory`` (or the default) and return its path.

    Does nothing when the directory already holds this version of the model. Safe when several
    processes build the same directory at once: each file appears whole or not at all.
    """
    target = directory or default_directory()
    stamp = target / "turnpike-fingerprint"
    if stamp.is_file() and stamp.read_text() == _fingerprint():
        return target
    target.mkdir(parents=True, exist_ok=True)
    files = {
        "tokenizer.json": _tokenizer_json(),
        "tokenizer_config.json": _dump(_tokenizer_config()),
        "config.json": _dump(_model_config()),
        "generation_config.json": _dump(_generation_config()),
        "chat_template.jinja": _TEMPLATE.read_text(),
        stamp.name: _fingerprint(),
    }
    for name, text in files.items():
        partial = target / f".{name}.{os.getpid()}"
        partial.write_text(text)
        partial.replace(target / name)
    return target


def _fingerprint() -> str:
    sources = (Path(__file__).read_bytes(), _TEMPLATE.read_bytes(), sys.version.encode())
    return hashlib.sha256(b"\0".join(sources)).hexdigest()[:16]


def _dump(value: dict[str, Any]) -> str:
    return json.dumps(value, indent=2) + "\n"


def _corpus() -> Iterator[str]:
    """The standard library's sources in a fixed order, up to a fixed size."""
    left = _CORPUS_BYTES
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text = path.read_text(encoding="utf-8", errors="ignore")[:60_000]
        left -= len(text)
        if left < 0:
            return
        yield text


def _tokenizer_json() -> str:
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY - len(_SPECIAL) - len(_VISIBLE),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in _SPECIAL])
    # Not special: the tool parser must find them in the decoded text.
    tokenizer.add_tokens([AddedToken(token, special=False) for token in _VISIBLE])
    return str(tokenizer.to_str())


def _tokenizer_config() -> dict[str, Any]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "clean_up_tokenization_spaces": False,
        "eos_token": END_OF_TURN,
        "pad_token": "<|endoftext|>",
        "model_max_length": CONTEXT_TOKENS,
    }


def _model_config() -> dict[str, Any]:
    return {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "vocab_size": VOCABULARY,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "hidden_act": "silu",
        "max_position_embeddings": CONTEXT_TOKENS,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1_000_000.0,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "use_sliding_window": False,
        "torch_dtype": "float32",
        "bos_token_id": None,
        "eos_token_id": _token_id(END_OF_TURN),
        "pad_token_id": _token_id("<|endoftext|>"),
    }


def _generation_config() -> dict[str, Any]:
    return {
        "eos_token_id": _token_id(END_OF_TURN),
        "pad_token_id": _token_id("<|endoftext|>"),
    }


def _token_id(token: str) -> int:
    """Ids of the added tokens: they follow the trained vocabulary in the order added."""
    return VOCABULARY - len(_SPECIAL) - len(_VISIBLE) + (_SPECIAL + _VISIBLE).index(token)
