# Shared by all scripts here: sourced, never run. Changes to the repository root, prints plainly, times each step.
set -euo pipefail
# A daemon may start this with descriptors 0 to 2 closed. The next opened file would then get such a number, and printed
# text would go into it.
[[ -e /proc/self/fd/0 ]] || exec 0</dev/null
[[ -e /proc/self/fd/1 ]] || exec 1>/dev/null
[[ -e /proc/self/fd/2 ]] || exec 2>/dev/null

COPUS_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
cd "$COPUS_ROOT"

venv_python="$COPUS_ROOT/.venv/bin/python"
# Number of cores that this process can use: those that it may run on, or the quota of its container, rounded up.
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

# Folder of Debian packages that were unpacked because only root may install them (scripts/unpack-debian-packages).
unpacked="$COPUS_ROOT/.cache/debian"
unpacked_libraries="$unpacked/usr/lib/$(uname -m)-linux-gnu"

# use_unpacked_packages: lets commands that are started from here on find their programs, headers, libraries and
# certificates.
use_unpacked_packages() {
  [[ -d "$unpacked/usr" ]] || return 0
  # A second call, after more packages were unpacked, adds those.
  if [[ ":$PATH:" != *":$unpacked/usr/bin:"* ]]; then
    export PATH="$PATH:$unpacked/usr/bin"
    export CMAKE_PREFIX_PATH="$unpacked/usr${CMAKE_PREFIX_PATH:+:$CMAKE_PREFIX_PATH}"
    export LD_LIBRARY_PATH="$unpacked_libraries${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}"
  fi
  if [[ -f "$unpacked/certificates.pem" ]]; then
    export SSL_CERT_FILE="${SSL_CERT_FILE:-$unpacked/certificates.pem}" PIP_CERT="${PIP_CERT:-$unpacked/certificates.pem}"
  fi
  # A compiler that was unpacked with the C library's headers must be told where these and the libraries are.
  if [[ -f "$unpacked/usr/include/stdio.h" ]]; then
    export CC="${CC:-$unpacked/usr/bin/gcc --sysroot=$unpacked}" CXX="${CXX:-$unpacked/usr/bin/g++ --sysroot=$unpacked}"
  fi
}
use_unpacked_packages

# package_index_of PYTHON: prints the address of the index that pip uses.
package_index_of() {
  local index="${PIP_INDEX_URL:-$("$1" -m pip config list 2>/dev/null |
    sed -n "s/^[^=]*\.index-url='\(.*\)'$/\1/p" | tail -n 1 || true)}"
  echo "${index:-https://pypi.org/simple}"
}

# Set by `step`: duration of the last step, in seconds with one decimal.
step_seconds=0

now_microseconds() { echo "${EPOCHREALTIME//[.,]/}"; }

# seconds_since MICROSECONDS: prints the seconds since then, with one decimal.
seconds_since() {
  local tenths=$((($(now_microseconds) - $1 + 50000) / 100000))
  echo "$((tenths / 10)).$((tenths % 10))"
}

# step TITLE COMMAND...: prints the title, runs the command, prints how long it took. Call it as a plain statement, so
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

# fail EXIT_CODE MESSAGE...: 2 is for what the user has to change, 1 for faults of ours.
fail() {
  local code="$1"
  shift
  printf 'error: %s\n' "$@" >&2
  exit "$code"
}

# provide_clang: sets up the build, and sets `clang` to COPUS_CLANG or to Debian 12's clang with its sanitizers.
provide_clang() {
  clang="${COPUS_CLANG:-clang++-14}"
  if [[ -n "${COPUS_CLANG:-}" ]]; then scripts/setup; else scripts/setup clang-14 libclang-rt-14-dev; fi
}

# list_sources GLOB...: prints our files that match, tracked or new, one a line.
list_sources() {
  local list source
  list="$(git ls-files --cached --others --exclude-standard -- "$@")" ||
    fail 1 "the list of sources comes from git, which must be installed, and this folder a clone."
  while read -r source; do
    [[ ! -e "$source" ]] || printf '%s\n' "$source"
  done <<<"$list"
}

# show_progress: reads ninja's output and shows the progress: on a terminal in one line that is overwritten, elsewhere
# in a line every progress_seconds.
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

# what_failed LOG: prints ninja's output about the first steps that failed, or else the end of it.
what_failed() {
  if grep -q '^FAILED: ' "$1"; then
    awk '/^FAILED: / { failed = 1 } failed && !/^\[[0-9]+\/[0-9]+\] / && ++lines <= 60' "$1"
  else
    tail -n 20 "$1"
  fi
}

# configure_and_build FOLDER TARGETS CMAKE_OPTION...: incremental. TARGETS are separated by blanks; empty means all. The
# output of CMake and of the compilers goes to logs in FOLDER, and is shown if they fail.
configure_and_build() {
  local folder="$1" targets libtorch
  read -ra targets <<<"${2:-all}"
  shift 2
  mkdir -p "$folder"
  # If the libtorch in CMake's cache is gone, for example because .venv was deleted, search again.
  libtorch="$(sed -n 's/^Torch_DIR:[A-Z]*=//p' "$folder/CMakeCache.txt" 2>/dev/null || true)"
  [[ -z "$libtorch" || -e "$libtorch" ]] || set -- -UTorch_DIR "$@"
  # A program that is started by hand must find unpacked libraries, too.
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
