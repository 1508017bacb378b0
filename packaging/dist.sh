#!/usr/bin/env bash
# dist.sh FOLDER -- makes FOLDER/pith-VERSION-linux-x86_64.tar.gz and FOLDER/pith_VERSION_amd64.deb,
# and tries both.
#
# The program is built in a root of an older Debian (11: glibc 2.31), so that it runs on any x86-64
# Linux with that glibc or a later one. Small libraries are linked in. libcurl and libgnutls are
# opened when a command needs them. Kernels of GPUs are a file beside it, made by this machine's
# compiler of shaders: it is data. Needs root, debootstrap and the package registry; roots are kept
# in FOLDER/roots for the next time.
#
# BUILD_SUITE  the release it is built in, default bullseye
# TRY_SUITES   releases it is tried in, each a bare root: default "bookworm"
set -euo pipefail
cd "$(dirname "$0")/.."
mkdir -p "$1"
out=$(realpath "$1")
build=${BUILD_SUITE:-bullseye}
mirror=$(cat /etc/apt/sources.list /etc/apt/sources.list.d/* 2>/dev/null |
    grep -oE 'https?://[^ ]+/debian/?( |$)' | sed -n 1p || true)
say() { echo "dist: $*" >&2; }
[ "$(id -u)" -eq 0 ] || { say "a root of another release can only be made as root"; exit 3; }
for program in debootstrap glslc curl openssl python3; do
    command -v $program >/dev/null ||
        apt-get install -y -qq --no-install-recommends $program >/dev/null
done
[ -e /usr/include/vulkan/vulkan_core.h ] ||
    apt-get install -y -qq --no-install-recommends libvulkan-dev >/dev/null

# root SUITE [PACKAGE...]: a bare root, made once, with these packages
root()
{
    local at=$out/roots/$1 suite=$1
    shift
    if [ ! -e "$at/made" ]; then
        say "making a root of $suite (once)"
        rm -rf "$at"
        mkdir -p "$at"
        debootstrap --variant=minbase "$suite" "$at" $mirror >"$out/debootstrap.log" 2>&1 ||
            { tail -n 5 "$out/debootstrap.log" >&2; return 1; }
        touch "$at/made"
    fi
    cp /etc/resolv.conf "$at/etc/resolv.conf"
    [ $# -eq 0 ] || chroot "$at" sh -c "export DEBIAN_FRONTEND=noninteractive
        dpkg -s $* >/dev/null 2>&1 || {
            apt-get update -qq && apt-get install -y -qq --no-install-recommends $*
        }" >"$out/apt.log" 2>&1 || { tail -n 5 "$out/apt.log" >&2; return 1; }
}

version=$(awk \
    '/^#define PITH_VERSION_M|^#define PITH_VERSION_P/ {v = v s $3; s = "."} END {print v}' \
    include/pith.h)
commit=$(git rev-parse --short HEAD)
root "$build" gcc libc6-dev make pkg-config libpcre2-dev libutf8proc-dev libjansson-dev \
    libxxhash-dev libmicrohttpd-dev libedit-dev \
    libcurl4-gnutls-dev nettle-dev ca-certificates
src=$out/roots/$build/src
rm -rf "$src"
mkdir -p "$src"
git archive HEAD | tar -x -C "$src"
# Its own headers of Vulkan are too old.
cp -r /usr/include/vulkan /usr/include/vk_video "$out/roots/$build/usr/include/"
say "building in $build"
# Warnings were errors where the tree is developed; an older compiler has others.
flags=(STATIC=1 COMMIT="$commit" CFLAGS="-O2 -Wno-error")
# It knows neither AVX-VNNI nor AMX. These kernels call nothing of the system, so this machine's
# compiler makes them; the link is the older root's.
newer=(build/obj/src/backend/cpu/x86/mm_{avxvnni,amx}.o)
make -C "$src" "${flags[@]}" "${newer[@]}" >"$out/build.log" 2>&1 || {
    tail -n 5 "$out/build.log" >&2
    exit 1
}
chroot "$out/roots/$build" make -C /src "${flags[@]}" build/flags >>"$out/build.log" 2>&1
(cd "$src" && rm -f "${newer[@]/%.o/.d}" && touch "${newer[@]}") # newer than the flags there
chroot "$out/roots/$build" make -C /src "${flags[@]}" build/pith >>"$out/build.log" 2>&1 || {
    grep -E 'error|undefined' "$out/build.log" | head >&2
    exit 1
}

make -C "$src" B=kernels VULKAN=1 kernels/pith-vulkan.kernels >>"$out/build.log" 2>&1 || {
    tail -n 5 "$out/build.log" >&2
    exit 1
}
kernels=$src/kernels/pith-vulkan.kernels

name=pith-$version-linux-x86_64
rm -rf "${out:?}/$name" "$out/deb"
mkdir -p "$out/$name/share/man/man1"
strip -o "$out/$name/pith" "$src/build/pith"
cp README.md LICENSE "$kernels" "$out/$name/"
"$out/$name/pith" man >"$out/$name/share/man/man1/pith.1"
newest=$(objdump -T "$out/$name/pith" | grep -oE 'GLIBC_[0-9.]+' | sort -uV | tail -n 1)
needed=$(objdump -p "$out/$name/pith" | awk '/NEEDED/ {printf "%s ", $2}')
bytes=$(stat -c %s "$out/$name/pith")
say "pith $version: $bytes bytes, needs $newest; libraries: $needed"
say "pith-vulkan.kernels: $(stat -c %s "$kernels") bytes"
if [ "$(printf '%s\nGLIBC_2.31\n' "$newest" | sort -V | tail -n 1)" != GLIBC_2.31 ]; then
    say "it needs more than glibc 2.31"; exit 1; fi
# docs/benchmarks.md (Build) says what they are.
[ "$bytes" -lt 5700000 ] || { say "it is over 5.7 MB"; exit 1; }
for library in $needed; do
    case $library in
    libc.so.6 | libm.so.6 | libdl.so.2 | libpthread.so.0 | ld-linux-x86-64.so.2) ;;
    *) say "it needs $library, which is not everywhere"; exit 1 ;;
    esac
done
tar -C "$out" --owner=0 --group=0 -czf "$out/$name.tar.gz" "$name"

deb=$out/deb
mkdir -p "$deb/DEBIAN" "$deb/usr/bin" "$deb/usr/share/man/man1" "$deb/usr/share/doc/pith" \
    "$deb/lib/systemd/system" "$deb/usr/lib/pith"
install -m 755 "$out/$name/pith" "$deb/usr/bin/pith"
install -m 644 "$kernels" "$deb/usr/lib/pith/"
gzip -9nc "$out/$name/share/man/man1/pith.1" >"$deb/usr/share/man/man1/pith.1.gz"
install -m 644 LICENSE "$deb/usr/share/doc/pith/copyright"
sed 's|@PREFIX@|/usr|' scripts/pith.service >"$deb/lib/systemd/system/pith.service"
cat >"$deb/DEBIAN/control" <<EOF
Package: pith
Version: $version
Architecture: amd64
Maintainer: the pith maintainers <$(git log -1 --format=%ae)>
Installed-Size: $((($(stat -c %s "$kernels") + bytes) / 1024 + 64))
Depends: libc6 (>= 2.31)
Recommends: libcurl3-gnutls | libcurl3t64-gnutls | libcurl4,
 libgnutls30 | libgnutls30t64, ca-certificates
Suggests: libvulkan1
Section: science
Priority: optional
Description: runs language models from GGUF files
 One program that answers on the command line and over interfaces of
 OpenAI, Anthropic and Ollama. libcurl fetches models; libgnutls is
 there for TLS, libvulkan1 and a driver for GPUs.
EOF
dpkg-deb --root-owner-group --build "$deb" "$out/pith_${version}_amd64.deb" >/dev/null

# post URL: four tokens of an answer, by a client outside the root.
post()
{
    curl -sk --noproxy '*' -m 60 --retry 30 --retry-delay 1 --retry-all-errors \
        "$1/v1/completions" -d '{"prompt": [1], "max_tokens": 4, "temperature": 0,
        "ignore_eos": true}' | grep -q '"completion_tokens": *4'
}

# serves ROOT PROGRAM SCHEME FLAG...: it starts, and answers.
serves()
{
    local at=$1 program=$2 scheme=$3 url= code=1
    shift 3
    chroot "$at" "$program" serve /tmp/m.gguf --port 0 --no-log --no-store-dir "$@" \
        >"$out/serve.log" 2>&1 &
    local pid=$!
    for _ in $(seq 300); do
        url=$(grep -m 1 -oE "^$scheme://[^ ]+" "$out/serve.log") && break
        kill -0 $pid 2>/dev/null || break
        sleep 0.1
    done
    [ -z "$url" ] || ! post "$url" || code=0
    kill $pid 2>/dev/null || true
    wait $pid || true
    [ $code -eq 0 ] || say "$program serves no $scheme: $(tail -n 3 "$out/serve.log")"
    return $code
}

# try ROOT PROGRAM TLS: what it has to do there. TLS 0: in a bare root, without libcurl, which it
# says; 1: with what the .deb recommends it fetches from, and is, a server with TLS.
try()
{
    local at=$1 program=$2 tls=$3 said path
    said=$(chroot "$at" sh -c "$program version && $program synth /tmp/m.gguf &&
        $program run /tmp/m.gguf -p a -n 4 --temp 0" 2>&1) || { say "$program: $said"; return 1; }
    say "${at##*/}: $program runs: $(head -n 1 <<<"$said")"
    serves "$at" "$program" http || return 1
    rm -rf "$at/tmp/pulled"
    if [ "$tls" = 0 ]; then
        said=$(chroot "$at" env PITH_MODELS=/tmp/pulled "$program" pull https://localhost:1/m.gguf \
            2>&1) && { say "$program fetches from nowhere: $said"; return 1; }
        grep -q 'fetching needs libcurl' <<<"$said" || { say "$program pull: $said"; return 1; }
        return 0
    fi
    path=$(chroot "$at" env PITH_MODELS=/tmp/pulled "$program" pull --retries 1 \
        "https://localhost:$files/m.gguf" 2>"$out/pull.log") && cmp "$at$path" "$at/tmp/m.gguf" ||
        { say "$program pull: $(tail -n 2 "$out/pull.log")"; return 1; }
    serves "$at" "$program" https --tls-cert /tmp/cert.pem --tls-key /tmp/key.pem
}

# A bare root of another release: no library of ours, no compiler.
for suite in ${TRY_SUITES:-bookworm}; do
    root "$suite"
    at=$out/roots/$suite
    rm -rf "$at/opt/$name"
    tar -C "$at/opt" -xzf "$out/$name.tar.gz"
    cp "$out/pith_${version}_amd64.deb" "$at/opt/pith.deb"
    for program in "/opt/$name/pith" /usr/bin/pith; do
        [ $program != /usr/bin/pith ] || chroot "$at" dpkg -i /opt/pith.deb >/dev/null
        try "$at" $program 0 || exit 1
    done
    chroot "$at" dpkg -r pith >/dev/null
done

# One with what the .deb recommends, and a server of files with TLS, which the root trusts.
at=$out/roots/tls
rm -rf "$at"
root bookworm
cp -a "$out/roots/bookworm" "$at"
root tls libcurl3-gnutls ca-certificates
openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost \
    -addext subjectAltName=DNS:localhost -keyout "$at/tmp/key.pem" -out "$at/tmp/cert.pem" \
    2>"$out/openssl.log"
cat "$at/tmp/cert.pem" >>"$at/etc/ssl/certs/ca-certificates.crt"
python3 - "$at/tmp" >"$out/files.log" 2>&1 <<'EOF' &
import functools, http.server, ssl, sys
s = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(
    http.server.SimpleHTTPRequestHandler, directory=sys.argv[1]))
c = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
c.load_cert_chain(sys.argv[1] + "/cert.pem", sys.argv[1] + "/key.pem")
s.socket = c.wrap_socket(s.socket, server_side=True)
print("port", s.server_port, flush=True)
s.serve_forever()
EOF
server=$!
trap 'kill $server 2>/dev/null || true' EXIT
until grep -q '^port ' "$out/files.log"; do
    kill -0 $server || { cat "$out/files.log" >&2; exit 1; }
    sleep 0.1
done
files=$(awk '/^port/ {print $2}' "$out/files.log")
tar -C "$at/opt" -xzf "$out/$name.tar.gz"
cp "$out/pith_${version}_amd64.deb" "$at/opt/pith.deb"
chroot "$at" dpkg -i /opt/pith.deb >/dev/null
for program in "/opt/$name/pith" /usr/bin/pith; do
    try "$at" $program 1 || exit 1
done
kill $server
rm -rf "$at"

# And one with a driver of Vulkan, Mesa's for processors: both find the kernels.
at=$out/roots/vulkan
rm -rf "$at"
root bookworm
cp -a "$out/roots/bookworm" "$at"
root vulkan mesa-vulkan-drivers
tar -C "$at/opt" -xzf "$out/$name.tar.gz"
cp "$out/pith_${version}_amd64.deb" "$at/opt/pith.deb"
chroot "$at" dpkg -i /opt/pith.deb >/dev/null
for program in "/opt/$name/pith" /usr/bin/pith; do
    said=$(chroot "$at" env PITH_VULKAN_DEVICES=0 $program devices 2>&1)
    grep -q '^vulkan0 ' <<<"$said" || { say "$program finds no kernels: $said"; exit 1; }
    say "$program has $(grep '^vulkan0 ' <<<"$said")"
done
rm -rf "$deb" "$at"

# There is no container engine here: the steps of the Dockerfile are run as they stand, each stage
# in a bare root of its release.
stage=0
while read -r word rest; do
    case $word in
    FROM)
        stage=$((stage + 1))
        at=$out/roots/docker-$stage
        rm -rf "$at"
        root bookworm
        cp -a "$out/roots/bookworm" "$at"
        rm -rf "$at/opt"/*
        ;;
    COPY)
        case $rest in
        ". /src") mkdir -p "$at/src" && git archive HEAD | tar -x -C "$at/src" ;;
        "--from=build "*)
            read -r _ from to <<<"$rest"
            mkdir -p "$at/${to%/*}" && cp "$out/roots/docker-1$from" "$at$to"
            ;;
        *) say "Dockerfile: COPY $rest is not known here"; exit 1 ;;
        esac
        ;;
    RUN)
        chroot "$at" sh -c "export DEBIAN_FRONTEND=noninteractive; $rest" >"$out/docker.log" 2>&1 ||
            {
            say "Dockerfile: RUN $rest"
            tail -n 5 "$out/docker.log" >&2
            exit 1
        }
        ;;
    esac
done < <(grep -vE '^#' packaging/Dockerfile)
said=$(chroot "$at" su pith -c 'pith version && pith serve --help' | sed -n 1,2p) ||
    { say "Dockerfile: pith does not run"; exit 1; }
cmp "$kernels" "$at/usr/local/lib/pith/pith-vulkan.kernels" ||
    say "Dockerfile: its compiler of shaders is another one than this machine's"
say "Dockerfile: its steps run, and so does $(sed -n 1p <<<"$said")"
rm -rf "$out/roots"/docker-*
ls -l "$out/$name.tar.gz" "$out/pith_${version}_amd64.deb"
