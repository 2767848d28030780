/* args.h: tables of the arguments that a stage takes, and their text in recipes: `value` or
 * `key=value`, with `:` between them. Not for the grammar around them (recipe.h). */
#ifndef KVC_ARGS_H
#define KVC_ARGS_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

enum { KVC_MAX_ARGS = 128 }; /* bytes of one stage's arguments, with the NUL */

/* The arguments of one stage: argument i of its table is in i[i] or f[i]. */
struct kvc_stage_args {
    int64_t i[8];
    double f[8];
};

enum kvc_arg_kind {
    KVC_ARG_INTEGER, /* key=NUMBER, in kvc_stage_args.i */
    KVC_ARG_REAL,    /* key=NUMBER with a fraction, in kvc_stage_args.f */
    KVC_ARG_WORD,    /* key=WORD, in .i: the index of the word */
    KVC_ARG_FLAG     /* key alone, in .i: 1 */
};

/* One argument. */
struct kvc_arg {
    const char *key; /* NULL: the value has no key */
    /* of integers and words; fallback: the value that is not given and not printed */
    int64_t min, max, fallback;
    enum kvc_arg_kind kind;
    double least, most, otherwise; /* the same of reals */
    const char *const *words;      /* NULL-terminated */
    int required;
    int encoder; /* 1: an optional argument that only encoders read; files do not store it */
};

/* Fills args from text. Refuses unknown keys, arguments that are given twice or missing, and
 * numbers out of range; messages begin with the name of the stage. n <= 8. */
int kvc_args_parse(const char *stage, const struct kvc_arg *table, size_t n, const char *text,
                   struct kvc_stage_args *args, struct kvc_error *e);
/* Returns 1 when all arguments are equal. */
int kvc_args_same(const struct kvc_stage_args *a, const struct kvc_stage_args *b);
/* Prints the canonical text: required arguments without a key, and arguments that differ from their
 * fallbacks, in the order of the table. */
void kvc_args_print(const struct kvc_arg *table, size_t n, const struct kvc_stage_args *args,
                    char *text, size_t size);

/* Appends a string to a text of `size` bytes, NUL included. Returns -1, and appends nothing, when
 * it does not fit. */
int kvc_text_append(char *text, size_t size, const char *more);

#endif
