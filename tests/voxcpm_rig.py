"""Tiny VoxCPM checkpoints in the published formats: random weights, the real audio geometry, a second to make."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer, models, normalizers, trainers

from voxagent_voxcpm.config import parse_config
from voxagent_voxcpm.network import Network
from voxagent_voxcpm.releases import RELEASES
from voxagent_voxcpm.weights import RandomWeights

CPU = torch.device("cpu")
_HEAD = 16
_SPECIAL = {
    0: "<unk>",
    1: "<s>",
    2: "</s>",
    101: "<|audio_start|>",
    103: "<|ref_audio_start|>",
    104: "<|ref_audio_end|>",
}
_CORPUS = (
    "Good morning, what can I do for you? Please stay on the line while I find your booking.",
    "Your table is reserved for seven people on Thursday evening, and the kitchen closes at ten.",
    "I am sorry, could you repeat that? Thank you very much, and have a pleasant trip!",
)


def tiny_config(release: str, vocab: int) -> dict[str, Any]:
    """A release's configuration, made small where it costs."""
    config = json.loads(json.dumps(RELEASES[release]))
    lm = config["lm_config"]
    lm |= {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2,
        "num_hidden_layers": 2, "kv_channels": _HEAD, "max_position_embeddings": 2048, "vocab_size": vocab,
    }  # fmt: skip
    lm["rope_scaling"] |= {"original_max_position_embeddings": 2048}
    lm["rope_scaling"] |= {
        f"{name}_factor": [1.0 + index / 10 for index in range(_HEAD // 2)] for name in ("long", "short")
    }
    for part in ("encoder_config", "dit_config"):
        config[part] |= {"hidden_dim": 48, "ffn_dim": 96, "num_heads": 4, "num_layers": 2, "kv_channels": _HEAD}
    vae = config["audio_vae_config"]
    vae |= {"encoder_dim": 8, "decoder_dim": 1 << (len(vae["decoder_rates"]) + 1)}
    return config | {
        "scalar_quantization_latent_dim": 32, "residual_lm_num_layers": 2, "max_length": 1024, "dtype": "float32"
    }  # fmt: skip


def make_checkpoint(directory: Path, release: str = "v2", *, stops: bool = False, pickled: bool = False) -> Path:
    """Writes a checkpoint.

    Args:
        directory: Is made.
        release: ``0.5b``, ``1.5`` or ``v2``.
        stops: The stop head says anything; otherwise it never stops a phrase.
        pickled: `pytorch_model.bin` in place of safetensors.
    """
    directory.mkdir(parents=True, exist_ok=True)
    config = tiny_config(release, _write_tokenizer(directory))
    (directory / "config.json").write_text(json.dumps(config))
    main, audio = RandomWeights(CPU, torch.float32, 3, keep=True), RandomWeights(CPU, torch.float32, 4, keep=True)
    network = Network(parse_config(config), main, audio)
    if not stops:
        main.made["stop_head.weight"].zero_()
    _set_level(network, audio.made)
    if pickled:
        torch.save({"state_dict": main.made}, directory / "pytorch_model.bin")
    else:
        save_file(main.made, directory / "model.safetensors")
    codec = {name.removeprefix("audio_vae."): tensor for name, tensor in audio.made.items()}
    torch.save({"state_dict": codec}, directory / "audiovae.pth")
    return directory


def _set_level(network: Network, made: Mapping[str, torch.Tensor]) -> None:
    """Scales the last convolution so that the decoder is about as loud as speech."""
    gains = [name.split(".") for name in made if ".decoder.model." in name and name.endswith("weight_g")]
    last = ".".join(max((parts for parts in gains if len(parts) == 5), key=lambda parts: int(parts[3])))
    with torch.inference_mode():
        loud = network.decoder.whole(
            torch.randn(1, network.config.feat_dim, 40, generator=torch.Generator().manual_seed(1))
        )
    made[last].mul_(0.1 / float(loud.square().mean().sqrt()))


def _write_tokenizer(directory: Path) -> int:
    """A BPE in the style of Llama's: word starts marked, bytes for what it lacks, one Chinese pair to be split."""
    reserved = [_SPECIAL.get(index, f"<|reserved_{index}|>") for index in range(128)]
    tokenizer = Tokenizer(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    trainer = trainers.BpeTrainer(
        vocab_size=600, special_tokens=[*reserved, *(f"<0x{byte:02X}>" for byte in range(256))], show_progress=False
    )
    tokenizer.train_from_iterator(_CORPUS, trainer)
    data = json.loads(tokenizer.to_str())
    vocab = data["model"]["vocab"]
    for token in ("早", "安", "早安"):
        vocab[token] = len(vocab)
    data["model"]["merges"].append(["早", "安"])
    data["added_tokens"] = [
        {"id": index, "content": text, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for index, text in enumerate(reserved)
    ]  # fmt: skip
    (directory / "tokenizer.json").write_text(json.dumps(data, ensure_ascii=False), encoding="utf-8")
    marks = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (directory / "special_tokens_map.json").write_text(json.dumps(marks))
    kind = {"tokenizer_class": "LlamaTokenizerFast", "add_bos_token": True, "legacy": True}
    (directory / "tokenizer_config.json").write_text(json.dumps(kind | marks))
    return len(vocab)
