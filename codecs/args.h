/* args.h: a stage's arguments as recipes spell them, `value` or `key=value` with `:` between. Not for the grammar around
 * them (recipe.h). */
#ifndef KVC_ARGS_H
#define KVC_ARGS_H

#include "codecs/stage.h"

#include <stddef.h>
#include <stdint.h>

enum { KVC_MAX_ARGS = 128 }; /* bytes of one stage's arguments, with the NUL */

enum kvc_arg_kind {
    KVC_ARG_INTEGER, /* key=NUMBER, in kvc_stage_args.i */
    KVC_ARG_REAL,    /* key=NUMBER with a fraction, in kvc_stage_args.f */
    KVC_ARG_WORD,    /* key=WORD, in .i: which of `words` */
    KVC_ARG_FLAG     /* key alone, in .i: 1 */
};

/* One argument; that of row i of a table is kept in place i of kvc_stage_args.i or .f. */
struct kvc_arg {
    const char *key;            /* NULL: the value stands alone */
    int64_t min, max, fallback; /* integers; fallback: what it is when it is not given; not printed then */
    enum kvc_arg_kind kind;
    double least, most, otherwise; /* the same of reals */
    const char *const *words;      /* words, NULL-terminated; `fallback` says which */
    int required;                  /* without it there is no stage */
};

/* Fills args from text; refuses unknown keys, arguments given twice or missing, and numbers out of range, naming the
 * stage. n <= 8. */
int kvc_args_parse(const char *stage, const struct kvc_arg *table, size_t n, const char *text,
                   struct kvc_stage_args *args, struct kvc_error *e);
/* The canonical text: what is required and stands alone, and what differs from the fallbacks, in the order of the table. */
void kvc_args_print(const struct kvc_arg *table, size_t n, const struct kvc_stage_args *args, char *text, size_t size);

/* Appends to a text of `size` bytes, NUL included: a string; a stage, `name` or `name:arguments`. Not 0 where it did
 * not fit. */
int kvc_text_append(char *text, size_t size, const char *more);
int kvc_stage_append(char *text, size_t size, const struct kvc_stage *stage, const struct kvc_stage_args *args);

#endif
