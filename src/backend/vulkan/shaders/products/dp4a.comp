/* dp4a.comp -- dp4a.glsl by multiplications of integers, which all devices have. */
#include "dp4a.glsl"
