/* dump.h: what the parts of kvc-dump share: its options, and one writer of text, JSON and TSV.
 * Not for other tools.
 *
 * A mode prints one file. Nearly every mode is a table, or a table whose rows hold another one; the mode
 * names columns and cells, and the writer makes of them
 *
 *   text  aligned columns under a heading; what is unknown is "-"
 *   JSON  an array of objects; what is unknown is null
 *   TSV   lines whose first column is the row's type; what is unknown is "-" */
#ifndef KVC_DUMP_H
#define KVC_DUMP_H

#include "cli/cli.h"

enum dump_style { DUMP_TEXT, DUMP_JSON, DUMP_TSV };

struct dump_column {
    const char *name; /* JSON's key and text's heading */
    int width;        /* of text columns, negative: on the left side, as printf() takes it */
};

struct dump_out {
    FILE *out;
    enum dump_style style;
    int several;          /* more than one file: name each */
    int begun;            /* the file's title stands: dump_end() is due */
    int any;              /* something was printed */
    struct cli_report report; /* its JSON is open for the mode's own keys while a file is printed */
    const char *group;    /* of facts, or NULL */
    unsigned depth;       /* tables open: 0 to 2 */
    struct {
        const struct dump_column *column; /* ends with name NULL */
        const char *row;                  /* TSV's row type */
        unsigned at;                      /* cells of the row so far */
        int in_line;                      /* the row's line has not ended */
    } table[3];
    int inner_heading; /* the file's inner tables have had theirs */
};

struct dump_values {
    uint32_t layer;
    enum kvc_role role;
    int all_heads;
    uint64_t head;
    uint64_t first, end; /* positions */
};

struct dump_options {
    uint32_t part; /* KVC_NONE: not given */
    int verbose;
    struct dump_values values;
    int32_t *tokens; /* of --match */
    uint64_t n_tokens;
    struct dump_matched *matched; /* --match: what was found, file by file */
    uint64_t n_matched;
};

typedef int dump_fn(struct dump_out *o, const struct kvc_opened *f, struct dump_options *options,
                    struct kvc_error *e);

dump_fn dump_summary;  /* dump_summary.c */
dump_fn dump_facts;    /* dump_facts.c: the summary for programs */
dump_fn dump_header;   /* dump_header.c */
dump_fn dump_layers;   /* dump_tables.c */
dump_fn dump_tokens;   /* dump_tables.c */
dump_fn dump_sections; /* dump_sections.c */
dump_fn dump_values;   /* dump_values.c */
dump_fn dump_stats;    /* dump_values.c */
dump_fn dump_match;    /* dump_match.c: notes what a file shares; dump_match_end() prints */

/* "L:K:H[:T0:T1]". 0, or -1 when malformed. */
int dump_values_parse(const char *text, struct dump_values *v);
/* The token ids of --match: JSON of an engine, a list of numbers, or a cache file's. */
int dump_match_tokens(const char *path, const struct kvc_import_options *import, struct dump_options *options,
                      struct kvc_error *e);
/* Prints what --match found, the best file first, and forgets it; returns how many files share a token. */
uint64_t dump_match_end(struct dump_out *o, struct dump_options *options);
/* Refuses a part number that the file does not have. */
int dump_check_part(const struct kvc_cache *c, const struct dump_options *options, struct kvc_error *e);
/* 1 when the mode should show part p. */
int dump_wants_part(const struct dump_options *options, uint32_t p);

/* A file's beginning: its name, as the style has it. A mode calls it when nothing but a damaged file can stop
 * it any more, so that what fails at once prints nothing. */
void dump_begin(struct dump_out *o, const char *name);
void dump_end(struct dump_out *o);
/* The same where an error ends it, or came before dump_begin(): JSON tells of it. */
void dump_failed(struct dump_out *o, const char *name, const struct kvc_error *e);

/* Facts outside tables: a key of the file's JSON object; TSV's row "fact", its name and its value; a line of
 * text. Those of a group are an object in JSON, and "group.name" in TSV. Not known: text NULL, or
 * dump_key_none(). */
void dump_group(struct dump_out *o, const char *name);
void dump_group_end(struct dump_out *o);
void dump_key_text(struct dump_out *o, const char *name, const char *v);
void dump_key_u64(struct dump_out *o, const char *name, uint64_t v);
void dump_key_f64(struct dump_out *o, const char *name, double v);
void dump_key_bool(struct dump_out *o, const char *name, int v);
void dump_key_hex(struct dump_out *o, const char *name, const uint8_t *v, uint64_t n);
void dump_key_i32s(struct dump_out *o, const char *name, const int32_t *v, uint64_t n);
void dump_key_none(struct dump_out *o, const char *name);

/* A table, or one inside the current row: nothing more goes into that row then. */
void dump_table(struct dump_out *o, const char *key, const char *row, const struct dump_column *columns);
void dump_table_end(struct dump_out *o);
void dump_row(struct dump_out *o);
void dump_row_end(struct dump_out *o);
/* Cells, in the order of the columns; every row has them all. */
void dump_u64(struct dump_out *o, uint64_t v);
void dump_i64(struct dump_out *o, int64_t v);
void dump_f64(struct dump_out *o, double v);       /* text rounds to 6 digits */
void dump_text(struct dump_out *o, const char *v); /* NULL: unknown */
void dump_bool(struct dump_out *o, int v);
void dump_hash(struct dump_out *o, uint64_t v); /* 16 hex digits */
void dump_hex(struct dump_out *o, const uint8_t *v, uint64_t n);
void dump_none(struct dump_out *o);
void dump_floats(struct dump_out *o, const float *v, uint64_t n); /* one cell in JSON, n in text and TSV */
void dump_u64s(struct dump_out *o, const uint8_t *v, uint64_t n); /* n little-endian numbers, likewise */

#endif
