#!/usr/bin/env python3
"""versus_shapes.py -- speed of unlike architectures beside the peer (bench/versus.py).

    bench/versus_shapes.py [--shapes moe,moe128,mla,hybrid,delta] [--quick] [versus.py's arguments]

Synthetic models with the shapes of real ones are made once in OUT, then go through versus.py:
experts (8 of 64, a billion weights in use; 4 of 128, 0.16 billion) with tg32,pp256, those with a
small or no cache a token at a depth of 4,096. Sizes and speed are those of a real model; the text
is none. --quick is one block of one repeat, tried once, with all threads on both sides.
"""
import os
import subprocess
import sys

from versus_types import arguments, versus

DEEP = "tg32@d4096,pp256@d4096"
# name: tests, arguments of `pith synth`
SHAPES = {
    # 16 layers, each with 64 experts of 2,048 x 1,024
    "moe": ("tg32,pp256", """--arch qwen3moe --type q4_0 --layers 16 --embd 2048 --heads 16
        --heads-kv 4 --head-dim 128 --ff 1024 --experts 64 --experts-used 8 --vocab 32000
        --ctx 8192"""),
    # gpt-oss-120b's count, 4 of 128, each of 1,024 x 1,024
    "moe128": ("tg32,pp256", """--arch qwen3moe --type q4_0 --layers 8 --embd 1024 --heads 16
        --heads-kv 4 --head-dim 64 --ff 1024 --experts 128 --experts-used 4 --vocab 32000
        --ctx 8192"""),
    # DeepSeek-V2-Lite's attention (latent of 512, 64 rotated) with fewer layers and experts
    "mla": (DEEP, """--arch deepseek2 --type q4_0 --layers 8 --embd 2048 --heads 16 --heads-kv 1
        --head-dim 576 --ff 1408 --experts 16 --experts-used 4 --vocab 32000 --ctx 8192
        --key expert_feed_forward_length=1408 --key expert_shared_count=2
        --key attention.key_length=576 --key attention.value_length=512
        --key attention.q_lora_rank=1536 --key attention.kv_lora_rank=512
        --key attention.key_length_mla=192 --key attention.value_length_mla=128
        --key rope.dimension_count=64"""),
    # Falcon-H1: attention and Mamba-2 side by side in every layer
    "hybrid": (DEEP, """--arch falcon-h1 --type q4_0 --layers 12 --embd 2048 --heads 16
        --heads-kv 4 --head-dim 128 --ff 4096 --vocab 32000 --ctx 8192
        --key ssm.inner_size=3072 --key ssm.state_size=256 --key ssm.time_step_rank=48
        --key ssm.group_count=1 --key ssm.conv_kernel=4 --tensor ssm_conv1d.bias"""),
    # Qwen3-Next: three gated delta nets for each attention, experts; fewer layers and experts
    "delta": (DEEP, """--arch qwen3next --type q4_0 --layers 8 --embd 2048 --heads 16
        --heads-kv 2 --head-dim 256 --ff 512 --experts 64 --experts-used 8 --vocab 32000
        --ctx 8192 --key ssm.inner_size=4096 --key ssm.state_size=128 --key ssm.time_step_rank=32
        --key ssm.group_count=16 --key ssm.conv_kernel=4
        --key attention.value_length=256 --key rope.dimension_count=64"""),
}


def main():
    a, rest = arguments(__doc__, "shapes", SHAPES, list(SHAPES))
    if "--quick" in rest:
        rest.remove("--quick")
        rest = ["--blocks", "1", "--tries", "1", "--peer-threads",
                str(len(os.sched_getaffinity(0))), *rest]
    status = 0
    for name in a.names:
        tests, shape = SHAPES[name]
        path = os.path.join(a.out, name + ".gguf")
        if not os.path.exists(path):
            subprocess.run([a.pith, "synth", path, *shape.split()], check=True)
        status = versus(a, [path], tests, rest) or status
    sys.exit(status)


if __name__ == "__main__":
    main()
