/* dp4a_tile.comp -- dp4a_tile.glsl by multiplications of integers. */
#include "dp4a_tile.glsl"
