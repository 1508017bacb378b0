/* shim_amx_avx512vnni.c -- the products of src/backend/cpu/x86/mm_amx.c with tiles made of plain C:
 * the very lines that AMX runs, its vectors included. */
#ifdef __x86_64__
#include <immintrin.h>

#include "shim_amx.h"
#define kern_mm_amx kern_mm_shim_amx
#include "backend/cpu/x86/mm_amx.c"
#endif
