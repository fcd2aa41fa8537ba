# Sourced by the other scripts, from the top of the tree.

die() {
  echo "$*" >&2
  exit 1
}

# build PRESET [TARGET]: installs what is missing, configures and builds. On a terminal ninja shows how far it is; else
# only what goes wrong is shown.
build() {
  scripts/packages
  echo "Building ${2:-everything} in build/$1"
  cmake --preset "$1" --log-level=WARNING >/dev/null || die "Configuring build/$1 failed."
  quiet=--quiet
  [ ! -t 1 ] || quiet=
  cmake --build --preset "$1" ${2:+--target "$2"} -- $quiet || die "Building build/$1 failed."
}
