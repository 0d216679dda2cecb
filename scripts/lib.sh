# What every script here shares: sourced, never run. Goes to the repository root, prints plainly, times each step.
# shellcheck shell=bash
# shellcheck disable=SC2034  # its variables are read by the scripts that source it
set -euo pipefail

COPUS_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$COPUS_ROOT"

venv_python="$COPUS_ROOT/.venv/bin/python"
jobs="${COPUS_JOBS:-$(nproc)}"

# Set by `step`: what the last step took, in seconds with one decimal.
step_seconds=0

now_microseconds() { echo "${EPOCHREALTIME//[.,]/}"; }

# seconds_since MICROSECONDS: prints the seconds that have passed since then, with one decimal.
seconds_since() {
  local tenths=$((($(now_microseconds) - $1 + 50000) / 100000))
  echo "$((tenths / 10)).$((tenths % 10))"
}

# step TITLE COMMAND...: says what is about to happen, does it, says how long it took. Call it as a plain statement, so
# that a failure ends the script.
step() {
  local title="$1" started
  shift
  started="$(now_microseconds)"
  printf '==> %s\n' "$title"
  "$@"
  step_seconds="$(seconds_since "$started")"
  printf '    done in %s s: %s\n' "$step_seconds" "$title"
}

# fail EXIT_CODE MESSAGE...: 2 is for what the user has to change, 1 for what we got wrong.
fail() {
  local code="$1"
  shift
  printf 'error: %s\n' "$@" >&2
  exit "$code"
}

# list_sources GLOB...: our files that match, tracked or new, one a line.
list_sources() {
  local list source
  list="$(git ls-files --cached --others --exclude-standard -- "$@")" ||
    fail 1 "the list of sources comes from git, which must be installed, and this folder a clone."
  while read -r source; do
    [[ ! -e "$source" ]] || printf '%s\n' "$source"
  done <<<"$list"
}

# configure_and_build FOLDER TARGETS CMAKE_OPTION...: both are incremental. TARGETS are separated by blanks; all if empty.
# The configuration's chatter appears when it fails.
configure_and_build() {
  local folder="$1" targets log
  read -ra targets <<<"${2:-all}"
  shift 2
  log="$folder/configure.log"
  mkdir -p "$folder"
  if ! cmake -S . -B "$folder" -G Ninja "$@" >"$log" 2>&1; then
    cat "$log" >&2
    fail 1 "CMake could not configure $folder (its output is above)."
  fi
  cmake --build "$folder" --parallel "$jobs" --target "${targets[@]}"
}
