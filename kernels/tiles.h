/* tiles.h: AMX's eight tiles, registers of up to 16 rows of up to 64 bytes, and what multiplies
 * them; KVC_TILES is defined where the compiler knows them. tests/unit/test_dot_rows.c, which
 * defines it before, has the same in C. Not for what is computed with them (predict_amx.c). */
#ifndef KVC_TILES_H
#define KVC_TILES_H

#include <stddef.h>
#include <stdint.h>

/* The operand of ldtilecfg (Intel's Software Developer's Manual, volume 1, chapter 18): palette 1
 * has eight tiles. */
struct kvc_tile_shapes {
    uint8_t palette, start_row, reserved[14];
    uint16_t row_bytes[16];
    uint8_t rows[16];
};

/* Compilers that know AMX come with assemblers that do. Their own intrinsics leave out that memory
 * is read (gcc 12). */
#if !defined(KVC_TILES) && defined(__x86_64__) && defined(__linux__) && \
    (__has_include(<amxint8intrin.h>) || __has_include(<amxintrin.h>)) /* gcc's, clang's */
#define KVC_TILES

/* Gives the tiles their shapes, and zeros. */
static inline void kvc_tiles_begin(const struct kvc_tile_shapes *shape) {
    __asm__ volatile("ldtilecfg %0" : : "m"(*shape));
}

/* Frees the tiles: the system no longer saves them when it changes threads. */
static inline void kvc_tiles_end(void) {
    __asm__ volatile("tilerelease");
}

/* t, a, b, c: numbers of tiles, 0 to 7. */
#define KVC_TILE_ZERO(t) __asm__ volatile("tilezero %%tmm" #t : :)
/* Rows lie `step` bytes apart. */
#define KVC_TILE_LOAD(t, from, step)                                \
    __asm__ volatile("tileloadd (%[row],%[apart],1), %%tmm" #t      \
                     :                                              \
                     : [row] "r"(from), [apart] "r"((size_t)(step)) \
                     : "memory")
#define KVC_TILE_STORE(t, to, step)                      \
    __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" \
                     :                                   \
                     : "r"(to), "r"((size_t)(step))      \
                     : "memory")
/* Adds to the 32-bit integers c[m][n] the products of signed bytes a[m][4 k + i] b[k][4 n + i]. */
#define KVC_TILE_MULTIPLY(c, a, b) \
    __asm__ volatile("tdpbssd %%tmm" #b ", %%tmm" #a ", %%tmm" #c : :)
#endif

#endif
