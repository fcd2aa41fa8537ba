# Sourced by tests that compare the logs of runs, which lie in $scratch.
# shellcheck shell=sh disable=SC2154

die() {
  echo "$*"
  exit 1
}
# values LOG NAME: one line a step.
values() {
  sed -n "s/.*\"$2\":\([^,}]*\).*/\1/p" "$scratch/$1"
}
# compare LOG OTHER NAME RELATIVE: every step's value is there twice and apart by at most so much.
compare() {
  values "$1" "$3" >"$scratch/a"
  values "$2" "$3" >"$scratch/b"
  [ -s "$scratch/a" ] || die "no $3 in the log of $1"
  paste "$scratch/a" "$scratch/b" | awk -v allowed="$4" -v what="$3 of step" '
    function size(x) { return x < 0 ? -x : x }
    NF != 2 || !(size($1 - $2) <= allowed * size($1)) { print what, NR ":", $0; wrong = 1 }
    END { exit wrong }' || die "$1 (left) and $2 (right) differ"
}
