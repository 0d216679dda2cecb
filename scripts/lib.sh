# What every script here shares: sourced, never run. Goes to the repository root, prints plainly, times each step.
# shellcheck shell=bash
# shellcheck disable=SC2034  # its variables are read by the scripts that source it
set -euo pipefail
# A daemon's closed descriptors: the next file to be opened would get such a number, and what is printed would go into it.
[[ -e /proc/self/fd/0 ]] || exec 0</dev/null
[[ -e /proc/self/fd/1 ]] || exec 1>/dev/null
[[ -e /proc/self/fd/2 ]] || exec 2>/dev/null

COPUS_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$COPUS_ROOT"

venv_python="$COPUS_ROOT/.venv/bin/python"
# Cores whose time this process gets: those that it may run on, or the quota of its container, rounded up.
usable_cores() {
  local cores quota period
  cores="$(nproc)"
  if read -r quota period 2>/dev/null </sys/fs/cgroup/cpu.max && [[ "$quota" != max ]]; then
    quota=$(((quota + period - 1) / period))
    ((quota >= cores)) || cores="$quota"
  fi
  echo "$cores"
}
jobs="${COPUS_JOBS:-$(usable_cores)}"

# Debian packages that were unpacked here because only root may install them (scripts/unpack-debian-packages).
unpacked="$COPUS_ROOT/.cache/debian"
unpacked_libraries="$unpacked/usr/lib/$(uname -m)-linux-gnu"

# use_unpacked_packages: what is started from here on finds their programs, headers, libraries and certificates.
use_unpacked_packages() {
  [[ -d "$unpacked/usr" ]] || return 0
  # Called again after more was unpacked, it adds what came.
  if [[ ":$PATH:" != *":$unpacked/usr/bin:"* ]]; then
    export PATH="$PATH:$unpacked/usr/bin"
    export CMAKE_PREFIX_PATH="$unpacked/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
    export LD_LIBRARY_PATH="$unpacked_libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  fi
  if [[ -f "$unpacked/certificates.pem" ]]; then
    export SSL_CERT_FILE="${SSL_CERT_FILE:-$unpacked/certificates.pem}" PIP_CERT="${PIP_CERT:-$unpacked/certificates.pem}"
  fi
  # A compiler that came with the C library's headers looks for them, and for what it links, where they are.
  if [[ -f "$unpacked/usr/include/stdio.h" ]]; then
    export CC="${CC:-$unpacked/usr/bin/gcc --sysroot=$unpacked}" CXX="${CXX:-$unpacked/usr/bin/g++ --sysroot=$unpacked}"
  fi
}
use_unpacked_packages

# package_index_of PYTHON: prints the address of the index that pip asks.
package_index_of() {
  local index="${PIP_INDEX_URL:-$("$1" -m pip config list 2>/dev/null |
    sed -n "s/^[^=]*\.index-url='\(.*\)'$/\1/p" | tail -n 1 || true)}"
  echo "${index:-https://pypi.org/simple}"
}

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

# provide_clang: sets `clang` to COPUS_CLANG, or to Debian 12's, with its sanitizers, and sets up.
provide_clang() {
  clang="${COPUS_CLANG:-clang++-14}"
  if [[ -n "${COPUS_CLANG:-}" ]]; then scripts/setup; else scripts/setup clang-14 libclang-rt-14-dev; fi
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

# show_progress: reads what ninja says, and tells how far it is: on a terminal in one line that is written over, elsewhere
# in a line every so many seconds.
progress_seconds=30
show_progress() {
  local line told="$SECONDS" started="$SECONDS" is_terminal=
  [[ ! -t 1 || "${TERM:-dumb}" == dumb ]] || is_terminal=yes
  while IFS= read -r line; do
    [[ "$line" =~ ^\[([0-9]+)/([0-9]+)\]\  ]] || continue
    if [[ -n "$is_terminal" ]]; then
      printf '\r\033[K    %s of %s steps, %s s' "${BASH_REMATCH[@]:1}" "$((SECONDS - started))"
    elif ((SECONDS - told >= progress_seconds)); then
      printf '    %s of %s steps, %s s\n' "${BASH_REMATCH[@]:1}" "$((SECONDS - started))"
      told="$SECONDS"
    fi
  done
  [[ -z "$is_terminal" ]] || printf '\r\033[K'
}

# what_failed LOG: prints what ninja's output says of the first steps that failed, or else its end.
what_failed() {
  if grep -q '^FAILED: ' "$1"; then
    awk '/^FAILED: / { failed = 1 } failed && !/^\[[0-9]+\/[0-9]+\] / && ++lines <= 60' "$1"
  else
    tail -n 20 "$1"
  fi
}

# configure_and_build FOLDER TARGETS CMAKE_OPTION...: both are incremental. TARGETS are separated by blanks; all if empty.
# What CMake and the compilers say goes to logs in FOLDER, and appears when they fail.
configure_and_build() {
  local folder="$1" targets libtorch
  read -ra targets <<<"${2:-all}"
  shift 2
  mkdir -p "$folder"
  # A libtorch that CMake remembers and that is gone, as with a .venv that was deleted, is looked for anew.
  libtorch="$(sed -n 's/^Torch_DIR:[A-Z]*=//p' "$folder/CMakeCache.txt" 2>/dev/null || true)"
  [[ -z "$libtorch" || -e "$libtorch" ]] || set -- -UTorch_DIR "$@"
  # What was unpacked is found by a program that is started by hand, too.
  [[ ! -d "$unpacked_libraries" ]] || set -- "-DCMAKE_BUILD_RPATH=$unpacked_libraries" "$@"
  if ! cmake -S . -B "$folder" -G Ninja "$@" >"$folder/configure.log" 2>&1; then
    cat "$folder/configure.log" >&2
    fail 1 "CMake could not configure $folder (its output is above)."
  fi
  if ! cmake --build "$folder" --parallel "$jobs" --target "${targets[@]}" 2>&1 | tee "$folder/build.log" |
    show_progress; then
    what_failed "$folder/build.log" >&2
    fail 1 "the build in $folder failed; what failed first is above, and all that was said is in $folder/build.log"
  fi
}
