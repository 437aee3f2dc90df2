# Sourced by quickstart and test: makes a fresh Debian or Ubuntu ready for this project, and does nothing where it is ready.
# Needs Python 3.11 or newer with pip; system packages need root or sudo. Whatever cannot be installed is named together
# with the command that brings it. `set_up` is the only function meant for others; `$UV` is the uv to use afterwards.
# shellcheck shell=bash

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
UV_VERSION=0.13.9
PYTHON=${PYTHON:-python3}

say() { printf '%s\n' "$*" >&2; }
give_up() {
  say "$(basename "$0"): $1"
  [ $# -lt 2 ] || say "  To get it:  $2"
  exit 1
}

apt_is_fresh=
# apt_install WHAT PACKAGE...: WHAT is named to the user when the packages cannot be installed.
apt_install() {
  local what=$1 sudo=
  shift
  local by_hand="sudo apt-get update && sudo apt-get install -y $*"
  command -v apt-get >/dev/null || give_up "$what is missing, and there is no apt-get here to install it with." \
    "install what your distribution calls: $*"
  if [ "$(id -u)" != 0 ]; then
    command -v sudo >/dev/null || give_up "$what is missing, and installing it needs root." "$by_hand"
    sudo=sudo
  fi
  say "Installing $* ($what)"
  if [ -z "$apt_is_fresh" ]; then
    $sudo apt-get update -qq >&2 || say "apt-get update failed; trying with the package lists that are here."
    apt_is_fresh=yes
  fi
  local words
  if ! words=$($sudo env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" 2>&1); then
    say "$words"
    give_up "$what could not be installed (apt-get's words stand above)." "$by_hand"
  fi
}

find_python() {
  command -v "$PYTHON" >/dev/null || give_up "Python 3.11 or newer is missing." "sudo apt-get install -y python3 python3-pip"
  "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
    give_up "$("$PYTHON" --version) is too old: 3.11 or newer is needed." "PYTHON=/path/to/python3.11 $0"
}

# A uv of our own goes to .venv-tools: nothing outside the checkout is touched.
find_uv() {
  UV=$(command -v uv || true)
  # A pyenv shim can be there without a uv behind it.
  if [ -n "$UV" ] && "$UV" --version >/dev/null 2>&1; then return; fi
  UV=$ROOT/.venv-tools/bin/uv
  [ -x "$UV" ] && return
  "$PYTHON" -m pip --version >/dev/null 2>&1 || apt_install "pip" python3-pip
  say "Installing uv $UV_VERSION into .venv-tools"
  PIP_ROOT_USER_ACTION=ignore "$PYTHON" -m pip install -q --disable-pip-version-check --target "$ROOT/.venv-tools" "uv==$UV_VERSION" >&2 ||
    give_up "uv $UV_VERSION could not be installed by pip." "$PYTHON -m pip install uv (or see uv's documentation)"
}

find_compiler() {
  command -v "${CC:-cc}" >/dev/null || command -v gcc >/dev/null || apt_install "A C compiler" gcc libc6-dev
  # The system's python3 needs its headers; one that uv or pyenv brought has them.
  local header
  header=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include") + "/Python.h")')
  [ -f "$header" ] || apt_install "Python.h" "$("$PYTHON" -c 'import sys; print("python%d.%d-dev" % sys.version_info[:2])')"
}

find_vulkan() {
  local probe="$ROOT/scripts/vulkan_probe.py"
  "$PYTHON" "$probe" loader || apt_install "The Vulkan loader (libvulkan.so.1)" libvulkan1
  if ! "$PYTHON" "$probe" device; then
    say "No Vulkan driver was found: the software driver will do (right answers, no speed)."
    apt_install "A Vulkan driver" mesa-vulkan-drivers
    "$PYTHON" "$probe" device || give_up "There is still no Vulkan device after installing mesa-vulkan-drivers." \
      "vulkaninfo (package vulkan-tools) says why; for a GPU, install its vendor's driver"
  fi
}

find_test_tools() {
  "$PYTHON" "$ROOT/scripts/vulkan_probe.py" layer VK_LAYER_KHRONOS_validation ||
    apt_install "The Khronos validation layer" vulkan-validationlayers
  command -v spirv-val >/dev/null || apt_install "spirv-val" spirv-tools
}

make_environment() {
  local log
  log=$(mktemp)
  # The shim is built by this; only its failure is worth reading.
  if ! (cd "$ROOT" && "$UV" sync --quiet --python "$PYTHON") 2>"$log"; then
    cat "$log" >&2
    rm -f "$log"
    give_up "The Python environment could not be made (its words stand above)." "$UV sync"
  fi
  rm -f "$log"
}

# set_up [tests]: everything that quickstart needs; with "tests" also what only the tests need.
set_up() {
  find_python
  find_uv
  find_compiler
  find_vulkan
  [ "${1:-}" != tests ] || find_test_tools
  make_environment
}

# in_project COMMAND...: run in the project's environment.
in_project() { "$UV" run --quiet --no-sync --project "$ROOT" "$@"; }
