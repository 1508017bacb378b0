/* dp4a_tile_dot.comp -- dp4a_tile.glsl by the instruction of VK_KHR_shader_integer_dot_product. */
#extension GL_EXT_spirv_intrinsics : require
#define DOT
#include "dp4a_tile.glsl"
