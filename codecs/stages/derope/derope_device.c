/* derope_device.c: rotations of a block's rows as a device makes them. Spec: derope.md. */
#include "codecs/stages/derope/derope_device.h"

#include <string.h>

/* Lists rotations that a block's positions share: by 256 h + 16 m positions, or by 0 to 15 (h < 0);
 * cosines, then sines. */
static void list_powers(double *to, struct kvc_rope *rope, int64_t h) {
    const size_t pair = 2 * rope->half;
    for (size_t i = 0; i < 16; i++) {
        if (h >= 0) kvc_rope_at(rope, 256 * h + 16 * (int64_t)i);
        memcpy(to + i * pair, h >= 0 ? rope->both : rope->low + i * pair, pair * sizeof *to);
    }
}

/* Keeps both tables of rotations on the device; the angles are their key. */
static int keep_powers(struct kvc_program *program, struct kvc_turn_op *to, const double *angle,
                       size_t half, int64_t h, struct kvc_error *e) {
    uint64_t *const at[2] = {&to->high, &to->low};
    struct kvc_rope rope = {.low = NULL};
    int status = 0;
    for (unsigned i = 0; i < 2 && !status; i++) {
        const struct kvc_program_key key = {angle, half * sizeof *angle, i ? 0 : (uint32_t)h + 1};
        void *room;
        status = program->keep(program->owner, &key, 32 * half * sizeof(double), &room, at[i], e);
        if (!status && room && !rope.low)
            status = kvc_rope_init(&rope, angle, half, KVC_PAIRING_HALVES, e);
        if (!status && room) list_powers(room, &rope, i ? -1 : h);
    }
    kvc_rope_free(&rope);
    return status;
}

int kvc_turn_lower(struct kvc_turn_op *to, const double *angle, size_t half,
                   enum kvc_pairing pairing, const int64_t *position, size_t rows,
                   struct kvc_program *program, struct kvc_error *e) {
    uint8_t low[KVC_MAX_BLOCK_ROWS];
    for (size_t i = 0; i < rows; i++) {
        if (position[i] >> 8 != position[0] >> 8) return 1;
        low[i] = (uint8_t)(position[i] & 255);
    }
    if (keep_powers(program, to, angle, half, position[0] >> 8, e)) return -1;
    to->pairs = (uint32_t)half;
    to->halves = pairing == KVC_PAIRING_HALVES;
    to->position = kvc_program_copy(program, low, rows, e);
    return to->position ? 0 : -1;
}
