/* spirv.c -- the shaders as the build compiled them. */
#include "backend/vulkan/vulkan_impl.h"

#define CODE(name) static const uint32_t name##_code[] =
CODE(attn)
#include <spirv/attn.inc>
    ;
CODE(attn_merge)
#include <spirv/attn_merge.inc>
    ;
CODE(cache_write)
#include <spirv/cache_write.inc>
    ;
CODE(columns)
#include <spirv/columns.inc>
    ;
CODE(conv)
#include <spirv/conv.inc>
    ;
CODE(embed)
#include <spirv/embed.inc>
    ;
CODE(linear)
#include <spirv/linear.inc>
    ;
CODE(matmul)
#include <spirv/matmul.inc>
    ;
CODE(moe_sort)
#include <spirv/moe_sort.inc>
    ;
CODE(norm)
#include <spirv/norm.inc>
    ;
CODE(pool)
#include <spirv/pool.inc>
    ;
CODE(rope)
#include <spirv/rope.inc>
    ;
CODE(rope_table)
#include <spirv/rope_table.inc>
    ;
CODE(rows)
#include <spirv/rows.inc>
    ;
CODE(ssm)
#include <spirv/ssm.inc>
    ;
CODE(topk)
#include <spirv/topk.inc>
    ;

#define X(name) [GPU_##name] = {#name, name##_code, sizeof name##_code},
const struct vk_spirv vk_spirv[GPU_N_FAMILIES] = {GPU_FAMILIES(X)};
