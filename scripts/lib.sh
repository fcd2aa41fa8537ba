# Sourced by the other scripts, from the top of the tree.
# shellcheck shell=sh

die() {
  echo "$*" >&2
  exit 1
}

# gpu_missing: says what is missing to run on a GPU here; nothing, and status 1, where all is there.
gpu_missing() {
  if ! command -v nvcc >/dev/null && [ ! -x /usr/local/cuda/bin/nvcc ]; then
    echo "no nvcc in PATH or /usr/local/cuda/bin: install the CUDA toolkit"
  elif ! command -v nvidia-smi >/dev/null; then
    echo "no nvidia-smi: install NVIDIA's driver"
  elif ! gpus=$(nvidia-smi -L 2>&1) || [ -z "$gpus" ]; then
    echo "nvidia-smi sees no GPU: $gpus"
  else
    return 1
  fi
}

# build PRESET [TARGET]: installs what is missing, configures and builds. On a terminal ninja shows how far it is; else
# only what goes wrong is shown.
build() {
  case $1 in
    clang) scripts/packages clang ;;
    *) scripts/packages ;;
  esac
  echo "Building ${2:-everything} in build/$1"
  cmake --preset "$1" --log-level=WARNING >/dev/null || die "Configuring build/$1 failed."
  quiet=--quiet
  [ ! -t 1 ] || quiet=
  cmake --build --preset "$1" ${2:+--target "$2"} -- $quiet || die "Building build/$1 failed."
}
