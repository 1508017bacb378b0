#!/usr/bin/env bash
# gpu.sh [FOLDER] -- everything that wants a GPU of NVIDIA, in one call: builds with kernels, runs
# the tests of ops and models on the device, runs them again under compute-sanitizer, and measures.
# What each part said is a file of FOLDER (default: build-cuda/gpu).
#
#   TEST_GGUF=file   Gemma 3 270M, for the test against exact arithmetic (default: as make test)
#   MODELS="a b"     models to measure besides synthetic ones
set -u
cd "$(dirname "$0")/.." || exit 1
B=build-cuda
out=${1:-$B/gpu}
bad=0

need() { command -v "$1" >/dev/null 2>&1 || { echo "gpu: $1 is not here" >&2; exit 3; }; }
# part NAME COMMAND..: its output goes to a file
part()
{
    local name=$1
    shift
    if "$@" >"$out/$name.txt" 2>&1; then
        echo "ok $name"
    else
        echo "FAIL $name (status $?): see $out/$name.txt"
        bad=1
    fi
}

need nvidia-smi
mkdir -p "$out"
nvidia-smi --query-gpu=name,driver_version,memory.total,clocks.max.sm --format=csv \
    >"$out/device.txt"
cat "$out/device.txt"
make CUDA=1 B=$B all $B/tests/test_cuda $B/tests/test_cuda_ops || exit 1

export TEST_CUDA=1
TEST_GGUF=${TEST_GGUF:-$(scripts/model.sh)}
export TEST_GGUF
part ops env TEST_SCALE=10 $B/tests/test_cuda_ops
part models env TEST_SCALE=10 $B/tests/test_cuda
for device in CPU cuda0; do
    part "logits-$device" $B/pith run "$TEST_GGUF" --device "$device" --temp 0 -n 32 \
        -p "The capital of France is"
done

if command -v compute-sanitizer >/dev/null 2>&1; then
    for tool in memcheck racecheck synccheck initcheck; do
        part "$tool-ops" compute-sanitizer --tool $tool --error-exitcode 9 $B/tests/test_cuda_ops
    done
    part memcheck-model env TEST_ONLY=golden_arch compute-sanitizer --error-exitcode 9 \
        $B/tests/test_cuda
else
    echo "skip compute-sanitizer: it is not here"
fi

# Models of the 7-8B class, of one layer's width and a quarter of the layers, in the types that
# figures are asked for.
for type in f16 q8_0 q4_0 q4_K; do
    model=$out/synth-$type.gguf
    [ -e "$model" ] || $B/pith synth "$model" --arch llama --type $type --layers 8 --embd 4096 \
        --heads 32 --heads-kv 8 --ff 14336 --ctx 4096 --vocab 32000 >"$out/synth-$type.txt" 2>&1 ||
        { echo "FAIL synth-$type: see $out/synth-$type.txt"; bad=1; continue; }
    part "bench-$type" $B/pith bench "$model" --device cuda0 -p 512 -n 128 -np 1,32
done
for model in ${MODELS:-}; do
    part "bench-$(basename "$model" .gguf)" $B/pith bench "$model" --device cuda0 -p 512 -n 128
done
grep -hE ' (pp|tg)[0-9]' "$out"/bench-*.txt 2>/dev/null
exit $bad
