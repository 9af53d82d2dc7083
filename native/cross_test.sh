#!/bin/sh
# Builds the native part and its tests for other systems, and runs them where that can be emulated.
#
#   sh native/cross_test.sh [SYSTEM ...]      by default all of them:
#
#   windows-gcc    x86-64 Windows, GCC       g++-mingw-w64-x86-64-posix; run by wine64
#   windows-clang  x86-64 Windows, Clang     pip install ziglang; run by wine64
#   arm-gcc        AArch64 Linux, GCC        g++-aarch64-linux-gnu; run by qemu-user-static
#   arm-clang      AArch64 Linux, Clang      pip install ziglang; run by qemu-user-static
#   macos-clang    AArch64 macOS, Clang      pip install ziglang; built only
#
# cmake and ninja must be in PATH.  PYTHON names the Python that has ziglang; its first build of a
# system takes minutes, since it compiles that system's C++ library.  What is missing is skipped,
# with one line that says so.  Objects go to build/cross-SYSTEM.
set -eu
root="$(cd "$(dirname "$0")/.." && pwd)"
cd "$root"
mkdir -p build
n_failed=0

has() { command -v "$1" >/dev/null 2>&1; }

skip() {
    echo "skipped  $1: $2"
    return 1
}

find_zig() {
    "${PYTHON:-python3}" -m ziglang version >/dev/null 2>&1 ||
        skip "$1" "no ziglang (pip install ziglang)"
}

# CMake wants programs for which no arguments are needed.
zig_tool() { # NAME ARGUMENTS
    printf '#!/bin/sh\nexec "%s" -m ziglang %s "$@"\n' "${PYTHON:-python3}" "$2" >"build/$1"
    chmod +x "build/$1"
}

build_with_zig() { # SYSTEM TARGET CMAKE-NAME
    find_zig "$1" || return
    zig_tool "zig-$2" "c++ -target $2"
    zig_tool zig-ar ar
    zig_tool zig-ranlib ranlib
    build "$1" -DCMAKE_SYSTEM_NAME="$3" -DCMAKE_CXX_COMPILER="$root/build/zig-$2" \
        -DCMAKE_AR="$root/build/zig-ar" -DCMAKE_RANLIB="$root/build/zig-ranlib"
}

build() { # SYSTEM CMAKE-OPTIONS...
    system=$1
    shift
    if cmake -S . -B "build/cross-$system" -G Ninja -DCMAKE_BUILD_TYPE=Release -DDYSPEC_TESTS=ON \
        -DDYSPEC_WERROR=ON "$@" >"build/cross-$system.log" 2>&1 &&
        cmake --build "build/cross-$system" >>"build/cross-$system.log" 2>&1; then
        echo "built    $system: $(ls "build/cross-$system"/native/*dyspec.[ds][lyo]* | head -1)"
    else
        tail -n 30 "build/cross-$system.log"
        echo "FAILED   $system: build/cross-$system.log"
        n_failed=$((n_failed + 1))
        return 1
    fi
}

run() { # SYSTEM SUFFIX EMULATOR...
    system=$1 suffix=$2
    shift 2
    run_one "$@" "build/cross-$system/native/dyspec_tests$suffix"
    run_one "$@" "build/cross-$system/native/dyspec_fuzz$suffix" 3
}

run_one() {
    log="build/cross-$system-run.log"
    if "$@" >"$log" 2>&1; then
        echo "passed   $system: $(tail -n 1 "$log" | tr -d '\r')"
    else
        tail -n 20 "$log"
        echo "FAILED   $system: $log"
        n_failed=$((n_failed + 1))
    fi
}

run_windows() {
    wine="$(command -v wine64 || ls /usr/lib/wine/wine64 2>/dev/null)" ||
        skip "$1" "built, not run: no wine64" || return
    # Not below build/: a prefix has a link to /, which whatever walks the checkout would follow.
    prefix="$(mktemp -d)"
    WINEDEBUG=-all WINEPREFIX="$prefix" run "$1" .exe "$wine"
    sleep 5 # wine's server goes on for three seconds, and writes
    rm -rf "$prefix"
}

run_arm() {
    has qemu-aarch64-static || skip "$1" "built, not run: no qemu-user-static" || return
    run "$1" "" qemu-aarch64-static -L /usr/aarch64-linux-gnu
}

windows_gcc() {
    has x86_64-w64-mingw32-g++-posix || skip "$1" "no g++-mingw-w64-x86-64-posix" || return
    build "$1" -DCMAKE_SYSTEM_NAME=Windows \
        -DCMAKE_CXX_COMPILER=x86_64-w64-mingw32-g++-posix || return
    run_windows "$1"
}

windows_clang() {
    build_with_zig "$1" x86_64-windows-gnu Windows && run_windows "$1"
}

arm_gcc() {
    has aarch64-linux-gnu-g++ || skip "$1" "no g++-aarch64-linux-gnu" || return
    build "$1" -DCMAKE_SYSTEM_NAME=Linux -DCMAKE_SYSTEM_PROCESSOR=aarch64 \
        -DCMAKE_CXX_COMPILER=aarch64-linux-gnu-g++ || return
    run_arm "$1"
}

arm_clang() {
    build_with_zig "$1" aarch64-linux-musl Linux && run_arm "$1"
}

macos_clang() {
    build_with_zig "$1" aarch64-macos Darwin &&
        skip "$1" "built, not run: nothing here runs macOS's programs"
}

for system in ${*:-windows-gcc windows-clang arm-gcc arm-clang macos-clang}; do
    case "$system" in
    windows-gcc | windows-clang | arm-gcc | arm-clang | macos-clang) ;;
    *)
        echo "error: no system '$system'; there are windows-gcc windows-clang arm-gcc arm-clang macos-clang" >&2
        exit 2
        ;;
    esac
    # In a condition, so that what is skipped or fails does not end the others.
    "$(echo "$system" | tr - _)" "$system" || :
done
[ "$n_failed" = 0 ]
