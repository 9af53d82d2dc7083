#!/bin/sh
# Builds llama.cpp for a device and runs the tests of the device path there, models offloaded whole.
#
#   sh native/device_test.sh vulkan [DIRECTORY]    Vulkan; on Debian's lavapipe, a device in software
#   sh native/device_test.sh cuda [DIRECTORY]      an NVIDIA GPU
#
# Virtual environment, sources and objects go to DIRECTORY (build/vulkan, build/cuda); a second run
# goes on where the first one stopped.  The models are small and generated; nothing is downloaded
# but Python packages.  What each needs, on Debian 12:
#
#   vulkan   apt install g++ python3-venv mesa-vulkan-drivers libvulkan-dev spirv-headers glslc
#            (lavapipe of Mesa 22.3 corrupts its heap: take bookworm-backports' Mesa, 25.0)
#   cuda     g++, python3-venv and the CUDA toolkit (nvcc in PATH, or CUDACXX)
set -eu
kind="${1:-}"
root="$(cd "$(dirname "$0")/.." && pwd)"
directory="${2:-$root/build/$kind}"
case "$kind" in
vulkan | cuda)
    mkdir -p "$directory"
    directory="$(cd "$directory" && pwd)"
    ;;
*)
    echo "usage: sh native/device_test.sh vulkan|cuda [DIRECTORY]" >&2
    exit 2
    ;;
esac
case "$kind" in
vulkan)
    cmake_args="-DGGML_VULKAN=ON"
    # ggml leaves devices in software alone unless they are named; without these shaders, which
    # lavapipe compiles for minutes each, the tests take about half an hour there.
    [ -e /dev/dri ] || export GGML_VK_VISIBLE_DEVICES=0 GGML_VK_DISABLE_COOPMAT=1 \
        GGML_VK_DISABLE_INTEGER_DOT_PRODUCT=1 GGML_VK_DISABLE_BFLOAT16=1
    # Debian 12's headers lack VK_EXT_layer_settings, which llama.cpp names but uses only with the
    # validation layer.
    mkdir -p "$directory/include/vulkan"
    cat >"$directory/include/vulkan/vulkan.hpp" <<'CPP'
#pragma once
#include_next <vulkan/vulkan.hpp>
#ifndef VK_EXT_layer_settings
#include <vector>
namespace vk {
enum class LayerSettingTypeEXT { eBool32 };
struct LayerSettingEXT {
    const char *layer, *name;
    LayerSettingTypeEXT type;
    uint32_t count;
    const void *values;
};
struct LayerSettingsCreateInfoEXT {
    VkStructureType type = VkStructureType(1000496000);
    const void *next = nullptr;
    uint32_t count;
    const LayerSettingEXT *settings;
    LayerSettingsCreateInfoEXT(const std::vector<LayerSettingEXT> &all)
        : count(uint32_t(all.size())), settings(all.data()) {}
};
}
#endif
CPP
    ;;
cuda)
    cmake_args="-DGGML_CUDA=ON -DCMAKE_CUDA_ARCHITECTURES=native"
    nvidia-smi -L 2>/dev/null || { echo "error: no NVIDIA GPU here" >&2; exit 1; }
    ;;
esac
python="$directory/venv/bin/python"
llama="$(sed -n 's/.*"\(llama-cpp-python==[^"]*\)".*/\1/p' "$root/pyproject.toml")"
[ -x "$python" ] || "${PYTHON:-python3}" -m venv "$directory/venv"

if [ ! -e "$directory/built" ]; then
    sources="$directory/$(echo "$llama" | tr - _ | sed 's/==/-/')"
    if [ ! -d "$sources" ]; then
        "$python" -m pip download --no-deps --no-binary llama-cpp-python --dest "$directory" "$llama"
        tar -C "$directory" -xzf "$sources.tar.gz"
    fi
    flags="$(sh "$root/native/amx_flags.sh")"
    CMAKE_ARGS="$cmake_args -DLLAVA_BUILD=OFF" CFLAGS="$flags" \
        CXXFLAGS="-I$directory/include $flags" \
        "$python" -m pip install --no-cache-dir -C build-dir="$directory/objects" "$sources"
    touch "$directory/built"
fi
cd "$root"
"$python" -m pip install --quiet -e '.[dev]'
"$python" -m pytest tests/decode/test_backend.py --gpu-layers 99
