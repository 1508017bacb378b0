#!/usr/bin/env python3
"""Writes src/tensor/quant/iq_tables.h: the code books of the IQ weight types, which are facts of
the file format.

Source: the Python package gguf (pip install gguf), classes IQ*; run as `scripts/gen_iq_tables.py
> src/tensor/quant/iq_tables.h`."""
import gguf.quants as q

BOOKS = [
    ("iq2_xxs", q.IQ2_XXS, "2 bits a code, 8 codes: magnitudes 8, 25, 43"),
    ("iq2_xs", q.IQ2_XS, "as iq2_xxs"),
    ("iq2_s", q.IQ2_S, "as iq2_xxs"),
    ("iq3_xxs", q.IQ3_XXS, "4 bits a code, 4 codes: magnitudes 4, 12, 20, 28, 36, 44, 52, 62"),
    ("iq3_s", q.IQ3_S, "4 bits a code, 4 codes: magnitudes 1, 3, 5, ... 15"),
    ("iq1", q.IQ1_S, "2 bits a code, 8 codes: -1, 0, 1 (iq1_s and iq1_m)"),
]

print("""/* iq_tables.h -- code books of the IQ types, made by scripts/gen_iq_tables.py; do not \
edit.
 * An entry holds the codes of 8 or 4 weights, the first in the lowest bits. */
#ifndef PITH_TENSOR_QUANT_IQ_TABLES_H
#define PITH_TENSOR_QUANT_IQ_TABLES_H

#include <stdint.h>""")
for name, cls, what in BOOKS:
    raw = bytes.fromhex(cls.grid_hex.decode())
    words = [raw[i] | raw[i + 1] << 8 for i in range(0, len(raw), 2)]
    assert len(words) == cls.grid_shape[0]
    print(f"\n/* {what} */\nstatic const uint16_t {name}_grid[{len(words)}] = {{")
    for i in range(0, len(words), 12):
        print("    " + " ".join(f"0x{w:04x}," for w in words[i:i + 12]))
    print("};")
print("\n#endif")
