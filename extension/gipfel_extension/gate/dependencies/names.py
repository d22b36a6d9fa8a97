"""Names of packages that may be typing errors of well-known ones."""

import re

#: Well-known packages. Source: chosen from Gipfel's `.ci/constraints.txt` and packages of deep learning; a
#: test compares all names of that file. Short names are left out: too much is one letter away from them.
_NAMES = (
    "accelerate aiohttp albumentations apache-airflow beautifulsoup4 bitsandbytes boto3 certifi chardet "
    "colorama colossalai cryptography datasets deepspeed diffusers django docker einops fairscale fastapi "
    "flash-attn gradio httpx huggingface-hub ipykernel ipywidgets jinja2 joblib jsonschema jupyterhub "
    "jupyterlab jupyter keras langchain lightning litellm llama-cpp-python matplotlib megatron-core "
    "mlflow mpi4py "
    "nibabel notebook numpy nvidia-ml-py openai opencv-python optuna pandas papermill paramiko pillow plotly "
    "polars protobuf psutil psycopg2 pyarrow pycryptodome pydantic pytest python-dateutil pytorch-lightning "
    "pyyaml rasterio requests safetensors scikit-image scikit-learn scipy seaborn selenium sentencepiece "
    "setuptools sqlalchemy sentence-transformers tensorboard tensorflow tiktoken tokenizers torch torchaudio "
    "torchvision tornado transformers triton typing-extensions urllib3 virtualenv vllm wandb websockets "
    "xarray xformers xgboost"
)
KNOWN = frozenset(_NAMES.split())
#: Real packages that are one letter away from one of them.
_REAL = frozenset(("tensorboardx", "torchx", "torchao", "psycopg"))
_MIN_CHARACTERS = 5


def likely_meant(name: str) -> str:
    """Return the well-known package that a name is one typing error away from; empty if there is none."""
    normal = re.sub(r"[-_.]+", "-", name).lower()
    if len(normal) < _MIN_CHARACTERS or normal in KNOWN or normal in _REAL:
        return ""
    candidates = {normal.replace("-", "")}
    for known in sorted(KNOWN):
        if len(known) >= _MIN_CHARACTERS and (
            _is_one_error(normal, known) or known.replace("-", "") in candidates
        ):
            return known
    return ""


def _is_one_error(one: str, other: str) -> bool:
    """Return whether one letter was left out, added, replaced, or changed places with its neighbour."""
    if abs(len(one) - len(other)) > 1 or one == other:
        return False
    start = next((at for at, pair in enumerate(zip(one, other, strict=False)) if pair[0] != pair[1]), None)
    if start is None:
        return True
    left, right = one[start:], other[start:]
    if len(left) == len(right):
        swapped = left[1:2] + left[:1] + left[2:]
        return left[1:] == right[1:] or (len(left) > 1 and swapped == right)
    return left[1:] == right if len(left) > len(right) else left == right[1:]
