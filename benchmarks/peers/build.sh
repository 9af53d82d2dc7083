#!/bin/sh
# Builds llama.cpp's own programs from the package that llama-cpp-python itself is built from: the
# sources, CMAKE_ARGS, compiler and flags that pip uses, with the programs added.
#
#   sh benchmarks/peers/build.sh PYTHON DIRECTORY [SOURCE]
#
# PYTHON has llama-cpp-python installed.  DIRECTORY is CMake's; the programs lie in its bin/.  SOURCE is
# the unpacked source package; without it pip downloads it.  CMAKE_BUILD_PARALLEL_LEVEL limits the
# number of compilers.
set -eu
python="$1" build="$2" source="${3:-}"
package=llama-cpp-python
version=$("$python" -c "from importlib.metadata import version; print(version('$package'))")
if [ -z "$source" ]; then
    # Its own requirements are not wanted, but pip asks the package for them.
    "$python" -m pip download "$package==$version" --no-deps --no-binary "$package" --dest "$build/source"
    tar -xzf "$build/source/llama_cpp_python-$version.tar.gz" -C "$build/source"
    source="$build/source/llama_cpp_python-$version"
fi
grep -qx "Version: $version" "$source/PKG-INFO" || {
    echo "$source is not the unpacked source package of $package $version" >&2
    exit 1
}
flags=$(sh "$(dirname "$0")/../../native/amx_flags.sh")
CFLAGS="${CFLAGS:-} $flags" CXXFLAGS="${CXXFLAGS:-} $flags"
PATH="$(dirname "$python"):$PATH"
export CFLAGS CXXFLAGS PATH
eval "set -- ${CMAKE_ARGS:-}"
# LLAVA_BUILD: llama-server brings that library along.  The page would be downloaded.
cmake -S "$source" -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DLLAVA_BUILD=OFF \
    -DLLAMA_BUILD_EXAMPLES=ON -DLLAMA_BUILD_TOOLS=ON -DLLAMA_BUILD_SERVER=ON \
    -DLLAMA_USE_PREBUILT_UI=OFF "$@"
cmake --build "$build" --target llama-speculative-simple llama-speculative llama-server
