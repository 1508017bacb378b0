#!/usr/bin/env bash
# deps.sh GROUP... -- makes sure that what a target needs is installed.
#
# Groups: build (compiler and libraries), server and pull (what pith serve and pith pull need
# besides), model (fetching the default model), fuzz (clang), arm (cross compiler and emulator),
# chat (line editing, which the build does without, and what its test needs), test (all that any
# test needs: the groups model, fuzz, arm and chat, a browser, a compiler of C++, and programs that
# tests hold ours against; when these are there, the Python packages and the instruct model, each
# fetched once: packages.sh, instruct.sh). Silent, quick and offline when nothing is missing. As
# root it installs through apt, saying so; otherwise it prints the one line to run and exits 3. It
# never asks a question.
set -u

missing=() welcome=()
need_program() { command -v "$1" >/dev/null 2>&1 || missing+=("$2"); }
need_library() { pkg-config --exists "$1" 2>/dev/null || missing+=("$2"); }

# Installed along with what is missing, and no reason to install anything by itself.
like_library() { pkg-config --exists "$1" 2>/dev/null || welcome+=("$2"); }

[ $# -gt 0 ] || set -- build
for group in "$@"; do
    # A group made of others.
    [ "$group" != test ] || set -- "$@" model fuzz arm chat
done
for group in "$@"; do
    case $group in
    build)
        need_program "${CC:-gcc}" gcc
        [ -e /usr/include/stdio.h ] || missing+=(libc6-dev)
        need_program pkg-config pkg-config
        need_library libpcre2-8 libpcre2-dev
        need_library libutf8proc libutf8proc-dev
        need_library jansson libjansson-dev
        need_library libxxhash libxxhash-dev
        like_library libedit libedit-dev
        like_library vulkan libvulkan-dev
        command -v glslc >/dev/null 2>&1 || welcome+=(glslc)
        ;;
    server)
        need_library libmicrohttpd libmicrohttpd-dev
        ;;
    pull)
        # With the TLS library that libmicrohttpd has, so that a program has one; any other libcurl
        # will do.
        need_library libcurl libcurl4-gnutls-dev
        need_library nettle nettle-dev
        command -v apt-get >/dev/null && [ ! -e /etc/ssl/certs/ca-certificates.crt ] &&
            missing+=(ca-certificates)
        ;;
    model)
        need_program python3 python3
        python3 -c 'import ensurepip, venv' 2>/dev/null || missing+=(python3-venv)
        ;;
    fuzz)
        need_program clang clang
        [ -e "$(clang -print-file-name="libclang_rt.fuzzer-$(uname -m).a" 2>/dev/null)" ] ||
            missing+=(libclang-rt-dev)
        ;;
    arm)
        need_program aarch64-linux-gnu-gcc gcc-aarch64-linux-gnu
        [ -e /usr/aarch64-linux-gnu/include/stdio.h ] || missing+=(libc6-dev-arm64-cross)
        need_program qemu-aarch64 qemu-user
        ;;
    chat)
        need_library libedit libedit-dev
        need_program tmux tmux
        ;;
    test)
        need_program chromium chromium
        need_program groff groff
        need_program systemd-analyze systemd
        need_program openssl openssl
        need_program curl curl
        need_program jq jq
        need_program g++ g++
        # A Vulkan device that any machine has.
        need_library vulkan libvulkan-dev
        need_program glslc glslc
        need_program spirv-val spirv-tools
        ls /usr/share/vulkan/icd.d/lvp_icd*.json >/dev/null 2>&1 || missing+=(mesa-vulkan-drivers)
        [ -e /usr/share/i18n/locales/de_DE ] || missing+=(locales)
        ;;
    *)
        echo "deps: no group named '$group' (build, server, pull, model, fuzz, arm, chat, test)" >&2
        exit 2
        ;;
    esac
done

# What tests need and apt does not have.
fetch() {
    for group in "$@"; do
        if [ "$group" = test ]; then
            "$(dirname "$0")/packages.sh" && "$(dirname "$0")/instruct.sh" >/dev/null
            return
        fi
    done
}
if [ ${#missing[@]} -eq 0 ]; then
    fetch "$@"
    exit
fi
missing+=("${welcome[@]}")

install_line="apt-get install -y --no-install-recommends ${missing[*]}"
if ! command -v apt-get >/dev/null 2>&1; then
    echo "deps: missing: ${missing[*]} (Debian's names);" \
        "install them with this system's package manager" >&2
    exit 3
fi
if [ "$(id -u)" -ne 0 ]; then
    echo "deps: run this once, then the same command again:" \
        " sudo sh -c 'apt-get update && $install_line'" >&2
    exit 3
fi

export DEBIAN_FRONTEND=noninteractive
echo "deps: installing ${missing[*]}" >&2
log=$(mktemp) || exit 3
trap 'rm -f "$log"' EXIT
if ! $install_line >"$log" 2>&1; then
    echo "deps: refreshing the package lists" >&2
    if ! { apt-get update && $install_line; } >"$log" 2>&1; then
        # One of them is in its way, which is no reason to be without the others.
        left=()
        for package in "${missing[@]}"; do
            apt-get install -y --no-install-recommends "$package" >>"$log" 2>&1 ||
                left+=("$package")
        done
        if [ ${#left[@]} -gt 0 ]; then
            tail -n 5 "$log" >&2
            echo "deps: apt could not install ${left[*]}; when the network is there, run: " \
                "apt-get update && apt-get install -y --no-install-recommends ${left[*]}" >&2
            exit 3
        fi
    fi
fi
echo "deps: installed" >&2
fetch "$@"
