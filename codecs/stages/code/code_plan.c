/* code_plan.c: the fixed tables of the stage `code` as the coder takes them, and plans of a
 * segment. Spec: code.md, "Tables". Not for the numbers in the tables (tables.c). */
#include "codecs/stages/code/code_plan.h"

#include "codecs/memory.h"
#include "codecs/rans.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { PER_OCTAVE = 5 }; /* scales 0.2 octaves apart */

static pthread_once_t once = PTHREAD_ONCE_INIT;
static uint32_t all_slots[KVC_CODE_SLOTS];
static uint32_t slot_room[(1 << KVC_CODE_BITS) + KVC_RANS_SLACK];
static struct kvc_rans_symbol all_rows[KVC_CODE_TABLES * KVC_CODE_SYMBOLS];
/* of an index at a step class */
static struct { uint8_t table, shift, limit; } point[KVC_CODE_CLASSES][KVC_CODE_INDICES];

unsigned kvc_code_shift(unsigned index) {
    return index < KVC_CODE_TABLES ? 0 : (index - KVC_CODE_TABLES + PER_OCTAVE) / PER_OCTAVE;
}

unsigned kvc_code_table(unsigned index) {
    return index - PER_OCTAVE * kvc_code_shift(index);
}

unsigned kvc_code_index_at(unsigned index, int class) {
    const int moved = (int)index - (PER_OCTAVE * (class + 2 * KVC_CODE_CLASS_ZERO) + 1) / 2 +
                      PER_OCTAVE * KVC_CODE_CLASS_ZERO;
    return moved < 0 ? 0 : moved >= KVC_CODE_INDICES ? KVC_CODE_INDICES - 1 : (unsigned)moved;
}

void kvc_code_frequencies(uint16_t to[KVC_CODE_SYMBOLS], unsigned table) {
    const uint16_t *half = kvc_code_half[table];
    unsigned sum = half[0];
    memset(to, 0, KVC_CODE_SYMBOLS * sizeof *to);
    to[KVC_CODE_MIDDLE] = half[0];
    for (unsigned r = 1; r < KVC_CODE_MIDDLE; r++) {
        to[KVC_CODE_MIDDLE - r] = to[KVC_CODE_MIDDLE + r] = half[r];
        sum += 2u * half[r];
    }
    to[KVC_CODE_ESCAPE] = (uint16_t)((1u << KVC_CODE_BITS) - sum);
}

static void make_tables(void) {
    uint8_t most[KVC_CODE_TABLES] = {0}; /* the largest code with a symbol */
    for (unsigned t = 0; t < KVC_CODE_TABLES; t++) {
        uint16_t frequency[KVC_CODE_SYMBOLS];
        kvc_code_frequencies(frequency, t);
        while (kvc_code_half[t][most[t] + 1]) most[t]++;
        kvc_rans_decoding_table(slot_room, frequency, KVC_CODE_SYMBOLS);
        memcpy(all_slots + ((size_t)t << KVC_CODE_BITS), slot_room,
               sizeof *all_slots << KVC_CODE_BITS);
        kvc_rans_encoding_table(all_rows + t * KVC_CODE_SYMBOLS, frequency, KVC_CODE_SYMBOLS);
    }
    for (int class = 0; class < KVC_CODE_CLASSES; class ++)
        for (unsigned i = 0; i < KVC_CODE_INDICES; i++) {
            const unsigned index = kvc_code_index_at(i, class - KVC_CODE_CLASS_ZERO),
                           table = kvc_code_table(index);
            point[class][i].table = (uint8_t)table;
            point[class][i].shift = (uint8_t)kvc_code_shift(index);
            point[class][i].limit = point[class][i].shift ? 0 : (uint8_t)(most[table] + 1);
        }
}

const uint32_t *kvc_code_slots(void) {
    pthread_once(&once, make_tables);
    return all_slots;
}

const struct kvc_rans_symbol *kvc_code_rows(void) {
    pthread_once(&once, make_tables);
    return all_rows;
}

const struct kvc_code_way *kvc_code_plan_make(struct kvc_code_plan *p, int class,
                                              struct kvc_error *e) {
    const size_t width = p->heads * p->dim;
    const unsigned c = (unsigned)(class + KVC_CODE_CLASS_ZERO);
    struct kvc_code_way *way = &p->at[c];
    pthread_once(&once, make_tables);
    if (!(way->shifted = kvc_alloc(p->heads, p->dim * (sizeof(uint32_t) + sizeof(uint16_t) + 2) +
                                                 sizeof(uint32_t)))) {
        kvc_fail_memory(e, "tables");
        return NULL;
    }
    way->n_shifted = way->shifted + width;
    way->base = (uint16_t *)(way->n_shifted + p->heads);
    way->shift = (uint8_t *)(way->base + width);
    way->limit = way->shift + width;
    for (size_t i = 0; i < width; i++) {
        const unsigned index = p->index[i];
        way->base[i] = (uint16_t)(point[c][index].table * p->factor);
        way->shift[i] = point[c][index].shift;
        way->limit[i] = point[c][index].limit;
    }
    for (size_t h = 0; h < p->heads; h++) {
        size_t n = 0;
        /* what is written last and does not count stays in the head's room */
        for (size_t i = 0; i < p->dim; i++) {
            way->shifted[h * p->dim + n] = (uint32_t)i;
            n += way->shift[h * p->dim + i] != 0;
        }
        way->n_shifted[h] = (uint32_t)n;
    }
    return way;
}

void kvc_code_plan_free(struct kvc_code_plan *p) {
    for (unsigned c = 0; c < KVC_CODE_CLASSES; c++) free(p->at[c].shifted);
}
