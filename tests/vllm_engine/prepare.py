"""Convert the small model's GGUF file, once, into the folder that vLLM loads.

    python tests/vllm_engine/prepare.py FOLDER

vLLM cannot load this GGUF file. The folder gets its name only when it is complete; an existing one
is not changed.
"""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from anabranch.backends._weights import ensure_weights


def main(folder: Path) -> None:
    if (folder / "config.json").is_file():
        return
    weights = ensure_weights(lambda _: None)
    print(f"converting {weights.name} into {folder} ...", flush=True)
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    _convert(weights, part)
    part.rename(folder)


def _convert(weights: Path, target: Path) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

    source = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source)
    config = loaded.config
    if hasattr(config, "quantization_config"):  # it describes the GGUF file, not the saved folder
        del config.quantization_config
    model = LlamaForCausalLM(config).to(torch.bfloat16)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(target)
    AutoTokenizer.from_pretrained(**source).save_pretrained(target)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
