# Sourced by the other scripts, from the top of the tree.

cores=$(nproc 2>/dev/null || echo 2)

die() {
  echo "$*" >&2
  exit 1
}

# Runs a command; what it prints is shown as it goes on a terminal, and else only when it fails.
quietly() {
  if [ -t 1 ]; then
    "$@"
    return
  fi
  log=$(mktemp)
  if "$@" >"$log" 2>&1; then
    rm -f "$log"
  else
    cat "$log" >&2
    rm -f "$log"
    return 1
  fi
}

# build PRESET [TARGET]: installs what is missing, configures and builds.
build() {
  scripts/packages
  [ -e "build/$1/build.ninja" ] || echo "Configuring build/$1"
  quietly cmake --preset "$1" --log-level=NOTICE || die "Configuring build/$1 failed."
  echo "Building ${2:-everything} in build/$1"
  quietly cmake --build --preset "$1" ${2:+--target "$2"} || die "Building build/$1 failed."
}
