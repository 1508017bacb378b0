#!/usr/bin/env bash
# gpu.sh [FOLDER [PART...]] -- everything that wants a GPU of NVIDIA, in one call: builds for the
# GPU that is here, tests ops and models on it, runs the tests of ops under compute-sanitizer, and
# measures. FOLDER (default: build-cuda/gpu) has a file for each part; FOLDER/report.txt is all of
# them in one, and FOLDER/summary.txt what to look at first.
#
# What was asked of a GPU first comes first: is it right (ops, attention, a text), how fast is it,
# then the tests of whole models, the sanitizer, the peer and Vulkan. A part that fails, crashes or
# hangs ends none but itself.
#
# A part that was done is not done again: where a call ends early, the next one goes on. `all` or
# the beginnings of names after FOLDER ask for these again: `gpu.sh out decode sanitize-race`.
# Status 0: all is well; 1: a part failed; 75: there is more to do.
#
#   LIMIT=540        seconds for this call; a part that has no minute left waits for the next
#   PART=240         seconds for a part, after which it has failed (the build: 590)
#   GPU_BUILD=FOLDER what is built, or was elsewhere: `gpu.sh pack FILE` makes a tar.gz of what a
#                    machine without compilers and network needs. GPU_MAKE=0: make nothing here
#   GPU_ARCHS=90     generations to build for (default: that of the GPU)
#   TEST_GGUF=FILE   Gemma 3 270M, for the test beside exact arithmetic (default: as make test)
#   LAYERS=32        of the synthetic models; EMBD, HEADS, HEADS_KV, FF, VOCAB: those of an 8B one
#   TYPES="f16 .."   types of weights that are measured
#   MODELS="a b"     models to measure besides
#   PEER=FOLDER      with llama-bench and llama-batched-bench of the peer, made for CUDA; PEER_SRC:
#                    its sources, to make them from
set -ua # a part is a process of its own, which has these variables and functions
here=$PWD
cd "$(dirname "$0")/.." || exit 1
B=${GPU_BUILD:-build-cuda}
TYPES=${TYPES:-f16 q8_0 q4_0 q4_K}
WIDE="--embd ${EMBD:-4096} --heads ${HEADS:-32} --heads-kv ${HEADS_KV:-8} --ff ${FF:-14336}"
WIDE="$WIDE --vocab ${VOCAB:-32000} --ctx 4096"
TESTS="$B/tests/test_cuda $B/tests/test_cuda_ops $B/tests/test_cuda_attn"
RECORD=$B/bench/bench_record
FUSED=matmul_glu,attn_enter # ops that are made of others in one launch
LONGEST=590
PART=${PART:-240}
began=$SECONDS

# What a machine without this program's libraries, compilers and network needs.
if [ "${1:-}" = pack ]; then
    file=$(cd "$here" && realpath -m "${2:?gpu: pack FILE}")
    make CUDA=1 B="$B" ${GPU_ARCHS:+"CUDA_ARCHS=$GPU_ARCHS"} all "$B"/gpu_roof "$RECORD" $TESTS ||
        exit 1
    stage=$B/pack there=$B/pack/build-cuda
    rm -rf "$stage" && mkdir -p "$there"/{tests,bench,lib} "$stage/tests" || exit 1
    cp -r scripts "$stage" && cp -r tests/data "$stage/tests" || exit 1
    for folder in golden/arch reference; do
        [ ! -d "${PITH_SHARED:-../shared}/$folder" ] || {
            mkdir -p "$stage/shared/$(dirname $folder)"
            cp -r "${PITH_SHARED:-../shared}/$folder" "$stage/shared/$folder"
        }
    done
    cp "$B"/pith "$B"/gpu_roof "$B"/*.kernels "$there" || exit 1
    cp $TESTS "$there/tests" && cp "$RECORD" "$there/bench" || exit 1
    strip "$there"/pith "$there"/gpu_roof "$there"/{tests,bench}/*
    for program in "$B"/pith "$B"/tests/test_cuda; do ldd "$program"; done |
        awk '$3 ~ /^\// && $1 !~ /^(libc|libm|libdl|libpthread|librt)\.so/ {print $3}' | sort -u |
        xargs -r cp -L -t "$there/lib"
    tar -C "$stage" -czf "$file" . || exit 1
    ls -l "$file"
    exit 0
fi

out=$(cd "$here" && realpath -m "${1:-$B/gpu}")
[ $# -gt 0 ] && shift
again=("$@")
mkdir -p "$out/models" || exit 1
LD_LIBRARY_PATH=$PWD/$B/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
case $B in /*) LD_LIBRARY_PATH=$B/lib${LD_LIBRARY_PATH#"$PWD/$B/lib"} ;; esac
PATH=$PATH:/usr/local/cuda/bin
bad=0 left=0

has() { command -v "$1" >/dev/null 2>&1; }
skip() { echo "skip $1: $2" | tee "$out/$1.skip"; }

# Is a part asked for again?
is_again()
{
    local word
    for word in "${again[@]+"${again[@]}"}"; do
        case $1 in "$word"*) return 0 ;; esac
        [ "$word" != all ] || return 0
    done
    return 1
}

# Seconds that a part, which is to have so many, can have now; 0: it waits.
seconds()
{
    local now=$1
    if [ -n "${LIMIT:-}" ]; then
        now=$((LIMIT - SECONDS + began))
        [ $now -le "$1" ] || now=$1
        [ $now -ge 60 ] || now=0
    fi
    echo $now
}

# part NAME COMMAND..: its output goes to a file, whose last line is how it ended. Status: the
# command's; 75 where it waits.
part()
{
    local name=$1 file=$out/$1.txt limit status from=$SECONDS most=$PART
    shift
    [ "$name" != build ] || most=$LONGEST
    rm -f "$out/$name.skip"
    if [ -e "$file" ] && ! is_again "$name"; then
        status=$(sed -n '$s/^# status \([0-9]*\),.*/\1/p' "$file")
        if [ -n "$status" ]; then
            [ "$status" = 0 ] || bad=1
            return "$status"
        fi
    elif [ ${#again[@]} -gt 0 ] && ! is_again "$name" && [[ $name != @(build|device) ]]; then
        return 75
    fi
    limit=$(seconds "$most")
    if [ "$limit" = 0 ]; then
        left=1
        return 75
    fi
    timeout -k 10 "$limit" bash -c '"$@"' part "$@" >"$file.tmp" 2>&1 </dev/null
    status=$?
    echo "# status $status, $((SECONDS - from)) s: $*" >>"$file.tmp"
    mv "$file.tmp" "$file"
    case $status in
    0) echo "ok $name ($((SECONDS - from)) s)" ;;
    124 | 137) if [ "$limit" -lt "$most" ]; then
            echo "more $name: it had $limit s"
            rm "$file"
            left=1
            status=75
        else
            echo "FAIL $name: not done after $limit s"
            bad=1
        fi ;;
    *)
        echo "FAIL $name (status $status): see $name.txt"
        bad=1
        ;;
    esac
    return $status
}

# ---------------------------------------------------------------- what is here

describe()
{
    nvidia-smi --query-gpu=name,driver_version,compute_cap,memory.total,clocks.max.sm,power.limit \
        --format=csv
    nvidia-smi topo -m 2>/dev/null
    has nvcc && nvcc --version | tail -n 2
    uname -srm
    nproc
    free -m 2>/dev/null | sed -n 2p
    df -m "$out" | tail -n 1
    git rev-parse --short HEAD 2>/dev/null
}

build()
{
    local archs=${GPU_ARCHS:-$(nvidia-smi --query-gpu=compute_cap --format=csv,noheader |
        tr -d . | sort -un | tr '\n' ' ')}
    if [ "${GPU_MAKE:-1}" = 0 ] || ! has nvcc; then
        echo "what is in $B is taken as it is"
        ls -l "$B"/pith "$B"/pith-cuda.kernels "$RECORD" $TESTS
        return
    fi
    # Without Vulkan's headers its tests are not there, which is no reason to stop.
    make CUDA=1 B="$B" CUDA_ARCHS="$archs" all "$B"/gpu_roof "$RECORD" $TESTS || return
    make CUDA=1 B="$B" CUDA_ARCHS="$archs" "$B"/tests/test_vulkan_ops || true
}

has nvidia-smi || {
    echo "gpu: there is no nvidia-smi, so no GPU of NVIDIA" >&2
    exit 3
}
part device describe
part build build
case $? in
0) ;;
75) exit 75 ;;
*)
    echo "gpu: nothing can be done without a build: see $out/build.txt" >&2
    exit 1
    ;;
esac
part roof "$B"/gpu_roof

# ---------------------------------------------------------------- tests

[ ! -d shared/golden ] || PITH_SHARED=${PITH_SHARED:-$PWD/shared}
TEST_CUDA=1 TEST_SCALE=${TEST_SCALE:-10}
[ -n "${TEST_GGUF:-}" ] || TEST_GGUF=$(timeout 300 scripts/model.sh 2>/dev/null) || TEST_GGUF=
part ops "$B"/tests/test_cuda_ops
part attention "$B"/tests/test_cuda_attn
if [ -n "$TEST_GGUF" ]; then
    for device in CPU cuda0; do
        part "text-$device" "$B"/pith run "$TEST_GGUF" --device "$device" -ngl all --temp 0 -n 32 \
            -v -p "The capital of France is"
    done
else
    skip text "there is no model: TEST_GGUF"
fi

# ---------------------------------------------------------------- figures

# synth NAME TYPE ARGUMENTS..: a model of FOLDER/models, made once.
synth()
{
    local file=$out/models/$1.gguf
    [ -e "$file" ] || "$B"/pith synth "$file.tmp" --arch llama --type "$2" "${@:3}" >/dev/null &&
        { [ -e "$file" ] || mv "$file.tmp" "$file"; }
}

# What the host does for a token of 24 layers: recorded, and call by call; from traces.
hosts_time()
{
    local room
    synth layers24 q4_0 --layers 24 --embd 256 --heads 8 --heads-kv 4 --ff 768 --vocab 1000 \
        --ctx 1024 || return
    for room in 12 0; do
        PITH_CUDA_RECORDINGS=$room "$B"/pith bench "$out/models/layers24.gguf" --device cuda0 \
            -ngl all -p 0 -n 256 -r 3 --trace "$out/host-$room.json" || return
        tr '{' '\n' <"$out/host-$room.json" | sed -n 's/.*"submit .*"dur": *\([0-9.]*\).*/\1/p' |
            sort -n | awk -v room=$room '{ us[NR] = $1 }
            END {
                if (!NR) { print "the trace has no submissions"; exit 1 }
                half = (us[int((NR + 1) / 2)] + us[int(NR / 2) + 1]) / 2
                printf "room for %d recordings: %d submissions, %.1f us in the median\n", room,
                    NR, half
            }' || return
        rm -f "$out/host-$room.json"
    done
}

bench() { "$B"/pith bench "$@"; }

# How much of the time two devices (names begin with $2) were at work at once, as the host saw it:
# of segments in a trace.
beside()
{
    sed -n 's/.*"pid":\([0-9]*\),.*"process_name","args":{"name":"\('"$2"'[^"]*\)".*/N \1 \2/Ip
s/.*"cat":"segment","pid":\([0-9]*\),.*"ts":\([0-9.]*\),"dur":\([0-9.]*\),.*/\1 \2 \3/p' "$1" |
        awk '$1 == "N" { named[$2] = 1; next }
            $1 in named { printf "%.3f 1 %s\n%.3f -1 %s\n", $2, $1, $2 + $3, $1 }' | sort -g |
        awk '{
                if (n == 1) one += $1 - last
                if (n > 1) both += $1 - last
                was = at[$3] > 0
                at[$3] += $2
                n += (at[$3] > 0) - was
                last = $1
            }
            END {
                if (!NR) { print "the trace has no segments"; exit 1 }
                printf "two devices at once: %.1f %% of %.1f ms\n", 100 * both / (one + both),
                    (one + both) / 1e3
                exit !(both > 0)
            }'
}
# Prefill by steps that follow each other through two logical devices of one GPU.
pipelined()
{
    synth q4_0 q4_0 --layers "${LAYERS:-32}" $WIDE || return
    local trace=$out/pipelined.json status
    bench "$out/models/q4_0.gguf" --device cuda0 -ngl all -p 2048 -n 0 -b 256 -r 2 || return
    PITH_CUDA_DEVICES=0,0 bench "$out/models/q4_0.gguf" --device cuda0,cuda1 -ngl all -ts 1,1 \
        -p 2048 -n 0 -b 256 -r 2 --trace "$trace" || return
    beside "$trace" cuda
    status=$?
    rm -f "$trace"
    return $status
}
# Decode with launches that stand for several, and without: tokens per second of each.
fused()
{
    local mask rate first=
    synth q4_0 q4_0 --layers "${LAYERS:-32}" $WIDE || return
    for mask in "" "$FUSED"; do
        PITH_CUDA_MASK=$mask bench "$out/models/q4_0.gguf" --device cuda0 -ngl all -p 0 -n 128 \
            -r 3 | tee "$out/fused.bench" || return
        rate=$(awk '$4 == "tg128" { rate = $5 } END { print rate }' "$out/fused.bench")
        first=${first:-$rate}
    done
    rm -f "$out/fused.bench"
    awk -v a="$first" -v b="$rate" 'BEGIN {
        if (!(a > 0 && b > 0)) exit 1
        printf "fused, times the rate without: %.3f\n", a / b }'
}
measure()
{
    local kind=$1 file=$2
    case $kind in
    decode) bench "$file" --device "$device" -ngl all -p 0 -n 128 -np 1,32 -r 3 ;;
    prefill) bench "$file" --device "$device" -ngl all -p 512,2048 -n 0 -b 2048 -r 3 ;;
    deep) bench "$file" --device "$device" -ngl all -p 0 -n 64 -d 3072 -np 1,8 -r 3 ;;
    ops) bench "$file" --device "$device" -ngl all -p 512 -n 32 -r 1 --ops ;;
    esac
}
measure_type()
{
    synth "$2" "$2" --layers "${LAYERS:-32}" $WIDE || return
    ls -l "$out/models/$2.gguf"
    measure "$1" "$out/models/$2.gguf"
}
peer()
{
    local folder=$PEER file=$out/models/$1.gguf
    "$folder"/llama-bench -m "$file" -ngl 99 -fa 1 -p 512,2048 -ub 2048 -b 2048 -n 128 -r 3 &&
        "$folder"/llama-batched-bench -m "$file" -ngl 99 -fa -c 8192 -npp 32 -ntg 64 -npl 1,32
}
make_peer()
{
    cmake -S "$PEER_SRC" -B "$out/peer" -DCMAKE_BUILD_TYPE=Release -DGGML_CUDA=ON \
        -DLLAMA_CURL=OFF -DCMAKE_CUDA_ARCHITECTURES="${GPU_ARCHS:-native}" &&
        cmake --build "$out/peer" -j "$(nproc)" --target llama-bench llama-batched-bench
}

device=cuda0
part host hosts_time
part record env PITH_PLUGINS="$B" "$RECORD" cuda0
part pipelined pipelined
part fused fused
for kind in decode prefill ops deep; do
    for type in $TYPES; do part "$kind-$type" measure_type $kind "$type"; done
done
for model in ${MODELS:-}; do
    part "model-$(basename "$model" .gguf)" bench "$model" --device cuda0 -ngl all -p 512 -n 128 \
        -np 1,32
done

# ---------------------------------------------------------------- tests of models

for name in golden_arch rows_over_two reference_model every_call_fails devices_are_lost \
    memory_runs_out gaps_are_named caches_of_every_type recordings_serve copies_are_measured \
    draws_of_the_best drawn_rows what_is_absent_is_named products_of attention_on twins_are_one \
    values_go_by_nccl; do
    case $name in # what is asked of these is asked of all positions, and of all counts
    reference_model | recordings_serve) scale=100 ;;
    *) scale=$TEST_SCALE ;;
    esac
    part "models-$name" env TEST_SCALE=$scale TEST_ONLY=$name "$B"/tests/test_cuda
done
if has compute-sanitizer; then
    for tool in memcheck racecheck synccheck initcheck; do
        for test in ops attn; do
            part sanitize-$tool-$test env TEST_SCALE=1 compute-sanitizer --tool $tool \
                --error-exitcode 9 "$B"/tests/test_cuda_$test
        done
    done
    part sanitize-model env TEST_SCALE=1 TEST_ONLY=golden_arch compute-sanitizer \
        --error-exitcode 9 "$B"/tests/test_cuda
else
    skip sanitize "there is no compute-sanitizer"
fi

# ---------------------------------------------------------------- beside others

if [ -n "${PEER_SRC:-}" ] && [ -z "${PEER:-}" ] && has cmake; then
    part peer-build make_peer && PEER=$out/peer/bin
fi
if [ -n "${PEER:-}" ] && [ -x "$PEER/llama-bench" ]; then
    for type in $TYPES; do part "peer-$type" peer "$type"; done
else
    skip peer "PEER names no folder with llama-bench, PEER_SRC no sources of it"
fi

if "$B"/pith devices 2>/dev/null | grep -q '^vulkan0 ' && [ -e "$B"/pith-vulkan.kernels ]; then
    device=vulkan0
    [ ! -x "$B"/tests/test_vulkan_ops ] ||
        part vulkan-ops env PITH_VULKAN_DEVICES=0 "$B"/tests/test_vulkan_ops
    for type in $TYPES; do
        for kind in decode prefill; do
            part "vulkan-$kind-$type" measure_type $kind "$type"
        done
    done
else
    skip vulkan "no device of Vulkan, or no kernels for it"
fi

# ---------------------------------------------------------------- the whole

# tokens KIND TYPE TEST: tokens per second of a test, from the file of a part.
tokens()
{
    [ ! -e "$out/$1-$2.txt" ] ||
        awk -v test="$3" '$4 == test { rate = $5 } END { if (rate) print rate }' "$out/$1-$2.txt"
}

# wants TYPE BYTES DECODE PREFILL: what was asked for beside what was found: shares of what the
# memory and the tensor cores gave, in %. BYTES: of a weight, in hundredths.
wants()
{
    awk -v type="$1" -v bytes="$2" -v decode="$3" -v prefill="$4" -v matrices="$matrices" \
        -v one="$(tokens decode "$1" tg128)" -v many="$(tokens decode "$1" tg128x32)" \
        -v rows="$(tokens prefill "$1" pp2048)" -v head="$head" -v memory="$memory" \
        -v cores="$cores" -v by="$by" '
        function say(what, found, wanted) {
            printf "%-4s %s: %s %.1f, wanted %s\n", (found >= wanted ? "yes" : "NO"), type, what,
                found, wanted
        }
        BEGIN {
            if (one && memory && decode)
                say("decode, % of memory", one * (matrices + head) * bytes / 1e9 / memory, decode)
            if (one && many)
                say("32 sequences, times one", many / one, 12)
            if (rows && cores && prefill)
                say("prefill, % of " by, rows * matrices * 2e-10 / cores, prefill)
        }'
}
# Least of the numbers that a pattern finds in the file of a part, beside what was asked for.
wants_least()
{
    sed -n "s/$3/\1/p" "$out/$1.txt" 2>/dev/null | sort -g | head -n 1 |
        awk -v what="$2" -v wanted="$4" '{
            printf "%-4s %s %.1f, wanted %s\n", ($1 >= wanted ? "yes" : "NO"), what, $1, wanted }'
}
verdicts()
{
    local e=${EMBD:-4096} matrices head memory cores by=mma.sync
    matrices=$((${LAYERS:-32} * (2 * e * e + 2 * e * e * ${HEADS_KV:-8} / ${HEADS:-32} +
        3 * e * ${FF:-14336})))
    head=$((e * ${VOCAB:-32000}))
    memory=$(sed -n 's/^reads its memory: \([0-9.]*\) GB.*/\1/p' "$out/roof.txt" 2>/dev/null)
    cores=$(sed -n 's/^tensor cores, f16.*: \([0-9.]*\) TFLOP.*/\1/p' "$out/roof.txt" 2>/dev/null)
    if grep -q '^wgmma, f16' "$out/roof.txt" 2>/dev/null; then # 9.0: its peak is reached by these
        by=wgmma
        cores=$(sed -n 's/^wgmma, f16.*: \([0-9.]*\) TFLOP.*/\1/p' "$out/roof.txt")
    fi
    wants f16 200 70 50
    wants q8_0 106.25 70 0
    wants q4_0 56.25 55 40
    wants_least record "host's time for a token, issued by replayed:" \
        '.*: \([0-9.]*\) times$' 3
    wants_least models-recordings_serve "replayed behind the first step, %:" \
        '.*behind the first \([0-9.]*\) %.*' 95
    wants_least fused "decode fused, times without:" '^fused, times .*: \([0-9.]*\)' 1
    wants_least pipelined "two devices at once, %:" \
        '^two devices at once: \([0-9.]*\) %.*' 1
}

{
    sed -n 2p "$out/device.txt"
    verdicts
    cat "$out"/roof.txt 2>/dev/null | grep -v '^#'
    for file in "$out"/*.txt; do
        name=$(basename "$file" .txt)
        case $name in report | summary | device | roof) continue ;; esac
        printf '%-28s %s\n' "$name" "$(tail -n 1 "$file" | cut -c 3-60)"
        says='^(FAIL|skip) |passed, .* failed| (pp|tg)[0-9]|recordings:|replayed|at once|mean KL'
        says="$says|ERROR SUMMARY"
        grep -hE "$says" "$file" | sed 's/^/    /' | head -n 30
    done
    cat "$out"/*.skip 2>/dev/null
} >"$out/summary.txt"
for file in "$out"/*.txt; do
    [ "$file" != "$out/report.txt" ] || continue
    printf '\n==== %s\n%s\n' "$(basename "$file")" "$(cat "$file")"
done >"$out/report.tmp"
mv "$out/report.tmp" "$out/report.txt"
if [ $left = 1 ]; then
    echo "there is more to do: call it again"
    exit 75
fi
[ $bad = 0 ] && echo "all is in $out" || echo "see $out/summary.txt"
exit $bad
