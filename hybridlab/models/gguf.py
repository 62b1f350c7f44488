"""GGUF files, as llama.cpp reads them: converted once, by transformers, to a folder in the Hugging Face layout.

    model = hybridlab.load_hf("SmolLM2-135M-Instruct.Q4_1.gguf")

The folder has float32 weights and is kept in the hub's cache of assets (HF_ASSETS_CACHE), by the SHA-256 of the file.
What transformers would read wrongly is refused: tensors and settings that it leaves out without a word.
"""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from hybridlab.data.gguf_tokenizers import TOKEN_IDS, Metadata, converted_folder, gguf_tokenizer_files
from hybridlab.errors import UserError, first_line
from hybridlab.files import in_place_of, write_text, writing
from hybridlab.messages import say
from hybridlab.models.hf_types import IN_WINDOWS, LAYOUTS

if TYPE_CHECKING:
    from gguf import GGUFReader

_READ_HERE = {
    "context_length": "max_position_embeddings",
    "attention.key_length": "head_dim",
    "attention.sliding_window": "sliding_window",
    "attn_logit_softcapping": "attn_logit_softcapping",
    "final_logit_softcapping": "final_logit_softcapping",
}
"""Keys after the architecture's name that transformers leaves out in some families → its settings."""
_ONLY = {
    "rope.scaling.type": ("none",),
    "rope.scaling.factor": (0.0, 1.0),
    "rope.scaling.attn_factor": (0.0, 1.0),
    "expert_count": (0,),
    "attention.causal": (True,),
}
"""Keys that transformers leaves out → the values with which that changes nothing."""


def gguf_in(path: Path) -> Path | None:
    """The GGUF file that a path names: FILE.gguf, or the only one in a folder without safetensors; None for any other
    path. UserError for a folder with several."""
    if path.suffix.lower() == ".gguf" and not path.is_dir():
        return path
    files = [] if any(path.glob("*.safetensors")) else sorted(path.glob("*.gguf"))
    if len(files) > 1:
        raise UserError(f"{path}: it holds {len(files)} GGUF files; name one of them, such as {files[0]}")
    return files[0] if files else None


def converted(file: Path) -> Path:
    """The folder in the Hugging Face layout of a GGUF file: .../SHA-256/NAME, with float32 weights and its tokenizer.

    UserError for a file that is missing, damaged or of a model that cannot be read, and if a package is missing.
    """
    try:
        with file.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    except OSError as error:
        raise UserError(
            f"{file}: it cannot be read ({error.strerror}); give the path of a GGUF file, or hub:OWNER/NAME/FILE.gguf"
        ) from None
    folder = converted_folder(digest) / file.stem
    if not folder.is_dir():
        reader = _opened(file)
        try:
            say(f"{file}: converting it to float32, once; kept in {folder}")
            with writing(folder), tempfile.TemporaryDirectory(dir=folder.parent) as partial:
                _convert(file, reader, Path(partial) / file.stem)
                try:
                    os.rename(Path(partial) / file.stem, folder)
                except OSError:
                    if not folder.is_dir():  # another process was not faster either
                        raise
        except UserError:
            raise
        except Exception as error:  # the libraries raise what they like for what a file may hold
            if isinstance(error, OSError) and error.errno is not None:
                raise
            raise UserError(
                f"{file}: it cannot be converted ({type(error).__name__}: {first_line(error)}); fetch it again, or use "
                "the model's safetensors"
            ) from None
    return folder


def _opened(file: Path) -> GGUFReader:
    """UserError, with the reason, for a file that is no whole GGUF file, and without the packages that read it."""
    with file.open("rb") as opened:
        start = opened.read(4)
    if start != b"GGUF":
        reason = "it is empty" if not start else f"it begins with {start!r} instead of b'GGUF'"
        problem = in_place_of(file) or f"this is not a GGUF file ({reason}); fetch it again"
        raise UserError(f"{file}: {problem}")
    for name in ("gguf", "accelerate", "transformers"):
        if find_spec(name) is None:
            raise UserError(f"{file}: GGUF files need {name}, which is not installed; pip install 'hybridlab[gguf]'")
    from gguf import GGUFReader

    try:
        return GGUFReader(file)
    except Exception as error:  # of numpy, where bytes are missing, or of its own for what it does not know
        if "GGMLQuantizationType" in str(error):
            raise UserError(
                f"{file}: a tensor is quantized in a way that the package gguf does not know; use a file of Q8_0, Q4_K "
                "or F16, or pip install --upgrade gguf"
            ) from None
        reason = f"{error}" if "version" in str(error) else "it ends too early, or is damaged"
        raise UserError(f"{file}: this GGUF file cannot be read ({reason}); fetch it again") from None


def _convert(file: Path, reader: GGUFReader, folder: Path) -> None:
    """Write the folder of a GGUF file."""
    metadata = {key: field.contents() for key, field in reader.fields.items()}
    _check_architecture(file, metadata)
    _check_quantization(file, reader)
    tokenizer = gguf_tokenizer_files(metadata, str(file))
    from transformers import AutoModelForCausalLM

    # Its bars of progress are for people who call it themselves.
    with redirect_stderr(io.StringIO()):
        config = _config(file, metadata)
        _check_tensors(file, reader, metadata, config)
        model: Any = AutoModelForCausalLM.from_pretrained(
            file.absolute().parent, gguf_file=file.name, config=config, dtype=torch.float32
        )
    # The weights are no longer quantized. transformers, but for 5.14, says otherwise, and would refuse to save them.
    vars(model.config).pop("quantization_config", None)
    model.hf_quantizer = None
    end, turn = (metadata.get(f"tokenizer.ggml.{name}_token_id") for name in ("eos", "eot"))
    if None not in (end, turn):
        model.generation_config.eos_token_id = list(dict.fromkeys([end, turn]))
    with redirect_stderr(io.StringIO()):
        model.save_pretrained(folder)
    for name, text in tokenizer.items():
        write_text(folder / name, text)


def _check_architecture(file: Path, metadata: Metadata) -> None:
    from gguf import MODEL_ARCH_NAMES
    from transformers.modeling_gguf_pytorch_utils import GGUF_SUPPORTED_ARCHITECTURES

    name = metadata.get("general.architecture")
    known = set(GGUF_SUPPORTED_ARCHITECTURES) & set(MODEL_ARCH_NAMES.values())
    ours = sorted(each for each in known if {each, f"{each}_text"} & LAYOUTS.keys())
    if name not in ours:
        raise UserError(f"{file}: a GGUF file of architecture {name!r} is not supported; it must be {', '.join(ours)}")
    for key, allowed in _ONLY.items():
        value = metadata.get(f"{name}.{key}", allowed[0])
        if value not in allowed:
            raise UserError(
                f"{file}: {name}.{key} = {value!r} is not read from GGUF files; use the model's safetensors"
            )


def _check_quantization(file: Path, reader: GGUFReader) -> None:
    from gguf import GGML_QUANT_SIZES, dequantize

    for kind, name in {tensor.tensor_type: tensor.name for tensor in reader.tensors}.items():
        try:
            dequantize(np.zeros((1, GGML_QUANT_SIZES[kind][1]), np.uint8), kind)
        except NotImplementedError:  # how the package says that it knows a quantization and cannot undo it
            raise UserError(
                f"{file}: {name} is quantized as {kind.name}, which cannot be read; use a file of Q8_0, Q4_K or F16"
            ) from None


def _config(file: Path, metadata: Metadata) -> Any:
    """transformers' configuration, with the settings that it leaves out. UserError for those that it cannot hold."""
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(file.absolute().parent, gguf_file=file.name)
    name = metadata["general.architecture"]
    if name == "llama" and config.model_type == "mistral":
        # By general.name alone; llama.cpp has no windows in this architecture, and Mistral's default has.
        own = ("model_type", "sliding_window")
        config = AutoConfig.for_model(name, **{key: value for key, value in config.to_dict().items() if key not in own})
    for role, key in TOKEN_IDS.items():  # else the family's own default stands where the file names none
        setattr(config, f"{role}_id", metadata.get(f"tokenizer.ggml.{key}"))
    for key, setting in _READ_HERE.items():
        value = metadata.get(f"{name}.{key}")
        if value is None:
            continue
        if setting != "head_dim" and not hasattr(config, setting):
            raise UserError(f"{file}: {name}.{key} = {value!r} is not supported; use the model's safetensors")
        if hasattr(config, setting):
            setattr(config, setting, value)
    width = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    for key in ("attention.key_length", "attention.value_length", "rope.dimension_count"):
        if (value := metadata.get(f"{name}.{key}", width)) != width:
            raise UserError(f"{file}: {name}.{key} = {value!r} is not supported; it must be {width}, a head's width")
    if hasattr(config, "query_pre_attn_scalar"):
        # As llama.cpp: the largest Gemma 2 and 3 (27B, by their number of layers) differ from all others.
        largest = config.num_hidden_layers == {"gemma2": 46, "gemma3": 62}[name]
        config.query_pre_attn_scalar = config.hidden_size // config.num_attention_heads if largest else width
        _set_windows(file, metadata, config)
    return config


def _set_windows(file: Path, metadata: Metadata, config: Any) -> None:
    """Say which layers of a Gemma have windows, and the base of their rotary positions, where the file does; llama.cpp
    and transformers have the same defaults. UserError for what the configuration cannot hold."""
    name, layers = metadata["general.architecture"], config.num_hidden_layers
    key = f"{name}.attention.sliding_window_pattern"
    pattern = metadata.get(key)
    if pattern is not None:
        # A number n: every n-th layer has none.
        whole = isinstance(pattern, int) and pattern > 0
        windows = [(layer + 1) % pattern != 0 for layer in range(layers)] if whole else pattern
        if not isinstance(windows, list) or len(windows) != layers:
            raise UserError(f"{file}: {key} = {pattern!r} does not fit its {layers} layers; fetch it again")
        kinds = {has: kind for kind, has in IN_WINDOWS.items()}
        config.layer_types = [kinds[bool(window)] for window in windows]
    key, rope = f"{name}.rope.freq_base_swa", config.rope_parameters
    base = metadata.get(key)
    if base is not None and "sliding_attention" in rope:
        rope["sliding_attention"]["rope_theta"] = base
    elif base is not None and base != rope["rope_theta"]:
        raise UserError(f"{file}: {key} = {base!r} is not supported; use the model's safetensors")


def _check_tensors(file: Path, reader: GGUFReader, metadata: Metadata, config: Any) -> None:
    """UserError for a tensor that is missing, that transformers would leave out, or of another size."""
    from gguf import MODEL_ARCH_NAMES, get_tensor_name_map
    from transformers import AutoModelForCausalLM

    with torch.device("meta"):
        parameters = AutoModelForCausalLM.from_config(config).state_dict()
    architecture = next(key for key, name in MODEL_ARCH_NAMES.items() if name == metadata["general.architecture"])
    names = get_tensor_name_map(architecture, config.num_hidden_layers)
    wanted = {
        f"{names.get_name(stem)}.{kind}": sorted(parameter.shape)
        for stem, _, kind, parameter in ((*name.rpartition("."), parameter) for name, parameter in parameters.items())
    }
    there = {tensor.name: sorted(map(int, tensor.shape)) for tensor in reader.tensors}
    missing = sorted(wanted.keys() - there.keys() - ({"output.weight"} if config.tie_word_embeddings else set()))
    if missing:
        raise UserError(f"{file}: it has no tensor {missing[0]}; give the whole model, not a part of it")
    for name, size in there.items():
        if name not in wanted:
            raise UserError(
                f"{file}: its tensor {name} is not read from GGUF files, and without it the model would be another "
                "one; use the model's safetensors"
            )
        if size != wanted[name]:
            raise UserError(f"{file}: {name} has the sizes {size}, and {wanted[name]} by its settings; fetch it again")
