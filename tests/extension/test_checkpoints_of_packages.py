"""Checkpoints that Hugging Face's Trainer and safetensors have written, read and checked.

The packages are installed by pip into ``build/peers``, once, beside this environment's torch; the tests are
skipped where that fails.
"""

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")


from peer_environment import PEERS

from gipfel_extension.data.checkpoint_formats import check_file
from gipfel_extension.data.checkpoints import find_checkpoints, other_models

_WITH_DEPENDENCIES, _ALONE = ("transformers==4.57.3",), ("accelerate==1.12.0",)
_PROGRAM = """
import os, sys, torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 16
    def __getitem__(self, number):
        words = torch.randint(0, 64, (8,), generator=torch.Generator().manual_seed(number))
        return {"input_ids": words, "labels": words}

def train(place, hidden, steps, safe):
    config = LlamaConfig(
        vocab_size=64, hidden_size=hidden, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=2, max_position_embeddings=16,
    )
    arguments = TrainingArguments(
        output_dir=place, max_steps=steps, save_steps=2, per_device_train_batch_size=2, report_to=[],
        use_cpu=True, save_safetensors=safe, disable_tqdm=True,
    )
    trainer = Trainer(LlamaForCausalLM(config), arguments, train_dataset=Data())
    trainer.train()
    return trainer.model

os.chdir(sys.argv[1])
model = train("safe", 16, 6, True)
model.save_pretrained("safe/checkpoint-4", max_shard_size="8KB")
os.remove("safe/checkpoint-4/model.safetensors")
train("pickled", 16, 2, False)
train("other", 32, 2, True)
names = "bool uint8 int8 int16 int32 int64 float16 bfloat16 float32 float64 float8_e4m3fn float8_e5m2"
names += " uint16 uint32 uint64 complex64 float8_e8m0fnu"
types = {each: getattr(torch, each) for each in names.split()}
tensors = {name: torch.ones(3, 5).to(each) for name, each in types.items()}
tensors |= {"empty": torch.empty(0, 4), "scalar": torch.tensor(1.5)}
save_file(tensors, "all.safetensors", metadata={"format": "pt"})
"""


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with what the packages have written."""
    folder = PEERS / "trainer"
    if not (folder / "installed").exists():
        for options in (_WITH_DEPENDENCIES, ("--no-deps", *_ALONE)):
            argv = [sys.executable, "-m", "pip", "install", "-q", "--target", folder, *options]
            if subprocess.run(argv, capture_output=True, timeout=400, check=False).returncode:
                pytest.skip("transformers can't be installed here")
        (folder / "installed").touch()
    place = tmp_path_factory.mktemp("written")
    environment = {**os.environ, "PYTHONPATH": str(folder), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    argv = [sys.executable, "-W", "ignore", "-c", _PROGRAM, str(place)]
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return place


def test_the_trainers_checkpoints_are_whole_and_their_hashes_are_compared(written: Path) -> None:
    found = find_checkpoints(written / "safe", verify=True)
    # safetensors has no checksums.
    assert [(each.path.name, each.state) for each in found] == [
        (f"checkpoint-{step}", "unhashed") for step in (2, 4, 6)
    ]
    assert all(each.can_resume for each in found)
    index = json.loads((written / "safe/checkpoint-4/model.safetensors.index.json").read_text())
    assert len(set(index["weight_map"].values())) > 1
    (pickled,) = find_checkpoints(written / "pickled", verify=True)
    assert pickled.state == "verified"
    (found[-1].path.parent / "checkpoint-8").symlink_to("/nowhere")
    assert len(find_checkpoints(written / "safe")) == 3


def test_a_checkpoint_of_another_model_is_named(written: Path, tmp_path: Path) -> None:
    for name, step in (("safe", 6), ("other", 2)):
        (written / name / f"checkpoint-{step}").rename(tmp_path / f"checkpoint-{step}")
    assert other_models(find_checkpoints(tmp_path)) == {tmp_path / "checkpoint-2": "checkpoint-6"}
    for name, step in (("safe", 6), ("other", 2)):
        (tmp_path / f"checkpoint-{step}").rename(written / name / f"checkpoint-{step}")


def test_damage_to_each_file_of_a_trainers_checkpoint_is_found(written: Path) -> None:
    for place in (written / "safe/checkpoint-4", written / "pickled/checkpoint-2"):
        names = [each for each in place.iterdir() if each.suffix in (".safetensors", ".pt", ".bin", ".pth")]
        assert len(names) > 4
        for file in names:
            content = file.read_bytes()
            for size in (0, 10, len(content) // 2, len(content) - 1):
                file.write_bytes(content[:size])
                (found,) = (
                    each for each in find_checkpoints(place.parent, verify=True) if each.path == place
                )
                assert (found.state, found.problem[: len(file.name)]) == ("damaged", file.name), size
            file.unlink()
            if file.suffix == ".safetensors":
                (found,) = (each for each in find_checkpoints(place.parent) if each.path == place)
                assert found.state == "damaged"
            file.write_bytes(content)


def test_all_types_of_safetensors_are_read_and_cut_or_flipped_headers_are_no_traceback(
    written: Path, tmp_path: Path
) -> None:
    content = (written / "all.safetensors").read_bytes()
    whole = check_file(written / "all.safetensors", verify=True)
    assert (whole.problem, len(whole.model)) == ("", 64)
    length = int.from_bytes(content[:8], "little")
    draw, path = random.Random(6), tmp_path / "x.safetensors"
    for _ in range(300):
        path.write_bytes(content[: draw.randrange(len(content))])
        assert check_file(path, verify=True).problem
        changed = bytearray(content)
        changed[draw.randrange(8 + length)] ^= 1 << draw.randrange(8)
        path.write_bytes(changed)
        found = check_file(path, verify=True)
        # What is still a header that covers the file describes other tensors.
        assert found.problem or found.model != whole.model or b"format" not in changed or b"pt" not in changed
