/* dump.h: the options of kvc-dump, its modes, and one writer of text, JSON, TSV and HTML. Not for
 * other tools.
 *
 * A mode prints one file. Nearly every mode is a table, or a table whose rows contain inner tables.
 * The mode names columns and cells, and the writer prints them as
 *
 *   text  aligned columns under a heading; unknown values are "-"
 *   JSON  an array of objects; unknown values are null
 *   TSV   lines whose first column is the row's type; unknown values are "-"
 *   HTML  for a part of a page: facts, and tables of text and numbers without inner tables */
#ifndef KVC_DUMP_H
#define KVC_DUMP_H

#include "cli/cli.h"
#include "cli/progress.h"
#include "cli/terminal.h"
#include "formats/api/kvc_inspect.h"

enum dump_style { DUMP_TEXT, DUMP_JSON, DUMP_TSV, DUMP_HTML };

struct dump_column {
    const char *name; /* JSON's key and text's heading */
    int width;        /* of text columns, as printf() takes it; negative: left-aligned */
};

struct dump_out {
    FILE *out;
    enum dump_style style;
    struct cli_canvas canvas;
    int several; /* there is more than one file: print each name */
    int begun;   /* the file's title is printed: dump_end() must follow */
    int any;     /* something was printed */
    /* while a file is printed, its JSON object is open for keys of the mode */
    struct cli_report report;
    const char *group; /* group of facts, or NULL */
    unsigned depth;    /* number of open tables: 0 to 2 */
    struct {
        const struct dump_column *column; /* ends with name NULL */
        const char *row;                  /* TSV's row type */
        unsigned at;                      /* number of cells in the row so far */
        int in_line;                      /* the row's line is not complete */
    } table[3];
    int in_facts; /* HTML: the table of facts is open */
    enum cli_color color;
    int inner_heading; /* the heading of the file's inner tables is printed */
    struct {
        const char *row;
        const struct dump_column *column;
    } headed[8]; /* TSV's row types whose heading is printed */
};

struct dump_values {
    uint32_t layer;
    const char *role;
    int all_heads;
    uint64_t head;
    uint64_t first, end; /* positions */
};

/* The totals of --list. */
struct dump_listed {
    uint64_t files, lossy, bytes, tensors; /* bytes of the files and of their tensors */
    uint64_t packed_bytes, packed_tensors; /* the same of containers alone */
};

struct dump_options {
    uint32_t part; /* KVC_NO_NUMBER: not given */
    int verbose, quiet;
    struct dump_values values;
    const char *html;             /* of --html: where the page is written */
    double start;                 /* seconds of cli_now() when the file was opened */
    struct cli_token_ids tokens;  /* of --match */
    struct dump_matched *matched; /* --match: the result of each file */
    uint64_t n_matched;
    struct dump_listed listed;
    const struct kvc_token_texts *texts; /* --tokens: of --model; NULL: unknown */
};

struct dump_tensor {
    struct kvc_tensor_info info;
    struct kvc_tensor_more more;
};
/* A file, and all that the library tells of it without reading rows. */
struct dump_file {
    struct kvc_file *cache;
    struct kvc_source_info source;
    struct kvc_file_facts facts;
    struct kvc_part_info *part;
    struct kvc_layer_info *layer; /* ordered by part */
    struct dump_tensor *tensor;
};
/* On failure nothing must be closed. */
int dump_file_open(struct dump_file *f, const char *path, struct cli_input *in,
                   struct kvc_error *e);
/* Lists what is told of a file that is open already. */
int dump_file_describe(struct dump_file *f, struct kvc_error *e);
void dump_file_close(struct dump_file *f);
/* Return metadata: a value, all zero where the key is absent; a text; whether there is the key. */
struct kvc_meta_value dump_meta(const struct dump_file *f, const char *key);
const char *dump_meta_text(const struct dump_file *f, const char *key, const char *otherwise);
int dump_has(const struct dump_file *f, const char *key);
/* All roles of tensors, in order; the last is followed by NULL. */
extern const char *const dump_roles[];

typedef int dump_fn(struct dump_out *o, const struct dump_file *f, struct dump_options *options,
                    struct kvc_error *e);

dump_fn dump_summary;  /* dump_summary.c */
dump_fn dump_facts;    /* dump_facts.c: the summary as JSON and TSV */
dump_fn dump_header;   /* dump_header.c */
dump_fn dump_layers;   /* dump_tables.c */
dump_fn dump_tokens;   /* dump_tables.c */
dump_fn dump_sections; /* dump_sections.c */
dump_fn dump_values;   /* dump_values.c */
dump_fn dump_stats;    /* dump_values.c */
dump_fn dump_html;     /* cli/html/dump_report.c */
dump_fn dump_list;     /* dump_list.c: a row of a file; dump_list_end() prints the totals */
dump_fn dump_match;    /* dump_match.c: records the result of a file; dump_match_end() prints */

/* Prints the summary of a profile or of a model's weights, for a file that is no cache. -1 if the
 * file is neither; *e is then the reason if it is a damaged profile, and else stays. */
int dump_no_cache(struct dump_out *o, const char *path, struct kvc_error *e);
/* Prints the summary of a profile. */
void dump_profile(struct dump_out *o, const char *path, const struct kvc_profile *p);
/* Takes the argument "L:K:H[:A:B]" of --values. 0, or EXIT_TROUBLE (message printed). */
int dump_values_take(const char *arg, struct dump_values *v);
/* Prints and frees the results of --match, the best file first. Returns the number of files that
 * share a token. */
uint64_t dump_match_end(struct dump_out *o, struct dump_options *options);
/* Prints the totals of --list; `failed` is the number of files without a row. */
void dump_list_end(struct dump_out *o, const struct dump_options *options, uint64_t failed);
/* Refuses a part number that the file does not have. */
int dump_check_part(const struct dump_file *f, const struct dump_options *options,
                    struct kvc_error *e);
/* Returns 1 if the mode must show part p. */
int dump_wants_part(const struct dump_options *options, uint32_t p);

/* Returns what a piece of a file holds: "layer 0 K", "region of 2 places", or its kind. */
const char *dump_piece_text(const struct dump_file *f, const struct kvc_piece_info *x, char *text,
                            size_t size);
/* Stored bytes of sections by their type. */
enum { DUMP_SECTION_TYPES = 64 };
struct dump_section_sizes {
    unsigned n;
    const char *type[DUMP_SECTION_TYPES];
    uint64_t bytes[DUMP_SECTION_TYPES];
};
void dump_count_section(struct dump_section_sizes *s, const char *type, uint64_t bytes);
/* Draw bytes by type of section, and stored bytes of a container by layer, as text on a canvas with
 * plots; else nothing. */
void dump_draw_sections(struct dump_out *o, const struct dump_section_sizes *s);
void dump_draw_layers(struct dump_out *o, const struct dump_file *f,
                      const struct dump_options *options);

/* Begins the output of a file with its name. A mode calls this function after all other checks,
 * when only damage can still stop it, so that a refused file prints nothing. */
void dump_begin(struct dump_out *o, const char *name);
void dump_end(struct dump_out *o);
/* Ends the output of a file after an error, also before dump_begin(). JSON gets the error. */
void dump_failed(struct dump_out *o, const char *name, const struct kvc_error *e);

/* Print facts outside of tables: a key of the file's JSON object; a TSV row "fact" with name and
 * value; a line of text. A group of facts is an object in JSON, and "group.name" in TSV. An unknown
 * fact is printed by text NULL or dump_key_none(). */
void dump_group(struct dump_out *o, const char *name);
void dump_group_end(struct dump_out *o);
void dump_key_text(struct dump_out *o, const char *name, const char *v);
void dump_key_u64(struct dump_out *o, const char *name, uint64_t v);
void dump_key_f64(struct dump_out *o, const char *name, double v);
void dump_key_bool(struct dump_out *o, const char *name, int v);
void dump_key_hex(struct dump_out *o, const char *name, const uint8_t *v, uint64_t n);
void dump_key_i32s(struct dump_out *o, const char *name, const int32_t *v, uint64_t n);
void dump_key_none(struct dump_out *o, const char *name);
/* Prints a line of text; for text and HTML. */
void dump_line(struct dump_out *o, const char *text);

/* Opens a table, or a table inside the current row, which must be complete. */
void dump_table(struct dump_out *o, const char *key, const char *row,
                const struct dump_column *columns);
void dump_table_end(struct dump_out *o);
/* Prints TSV's heading "#ROW", names of columns, before the first row of a type, and again if
 * its columns change. Other styles: nothing. */
void dump_heading(struct dump_out *o, const char *row, const struct dump_column *columns);
/* Begin and end a row of a table whose rows are files; the last column is the file's name. The
 * first row opens the table; the caller closes it. In JSON the cells are keys of the file's object,
 * for dump_end(). */
void dump_file_row(struct dump_out *o, const char *name, const char *row,
                   const struct dump_column *columns);
void dump_file_row_end(struct dump_out *o, const char *name);
void dump_row(struct dump_out *o);
void dump_row_end(struct dump_out *o);
/* Print cells, in the order of the columns; every row must have all of them. */
void dump_u64(struct dump_out *o, uint64_t v);
void dump_i64(struct dump_out *o, int64_t v);
void dump_f64(struct dump_out *o, double v);       /* text rounds to 6 digits */
void dump_text(struct dump_out *o, const char *v); /* NULL: unknown */
/* the same, in text shortened to `most` bytes */
void dump_short_text(struct dump_out *o, const char *v, size_t most);
void dump_bool(struct dump_out *o, int v);
/* of the next cells, in text; CLI_PLAIN ends it */
void dump_color(struct dump_out *o, enum cli_color color);
void dump_yes(struct dump_out *o, int v);           /* "yes" or "no" in text and TSV */
void dump_bytes(struct dump_out *o, uint64_t v);    /* "25.8 MB" in text */
void dump_ratio_cell(struct dump_out *o, double v); /* 3 digits after the point in text */
void dump_hash(struct dump_out *o, uint64_t v);     /* 16 hex digits */
void dump_hex(struct dump_out *o, const uint8_t *v, uint64_t n);
void dump_none(struct dump_out *o);
/* one cell in JSON, n in text and TSV */
void dump_floats(struct dump_out *o, const float *v, uint64_t n);
/* n little-endian numbers; cells as for dump_floats() */
void dump_u64s(struct dump_out *o, const uint8_t *v, uint64_t n);

/* --- facts of the summary (dump_facts.c) --- */

/* A number that is equal in all layers, or mixed. */
struct dump_shared {
    uint64_t value;
    int seen, mixed;
};

/* The dtypes of one role, in order of layers. */
struct dump_dtypes {
    unsigned n;
    const char *name[4];
};

struct dump_part_facts {
    uint32_t layers;
    struct dump_dtypes k, v;
    struct dump_shared k_row, v_row;
    uint64_t bytes;
};

struct dump_unknown {
    const char *fact, *option; /* option NULL: no option supplies the fact */
};

struct dump_facts {
    const struct dump_file *f;
    uint64_t extras; /* number of items of prefix.extras */
    struct dump_shared heads, k_dim, v_dim;
    struct dump_dtypes k, v, others;
    uint32_t layers; /* layers that have K, V, latents or states */
    uint64_t snapshots;
    uint64_t tensor_bytes;
    int has_k, has_window, window_known;
    struct dump_part_facts *part;
    unsigned n_unknown;
    struct dump_unknown unknown[12];
};

/* Collects all facts without reading values. 0, and the caller frees facts.part, or -1 and *e. */
int dump_facts_gather(struct dump_facts *x, const struct dump_file *f, struct kvc_error *e);
/* Writes "f16", or "f32,f16" for a mixture. NULL if there are no dtypes. */
const char *dump_dtypes_text(const struct dump_dtypes *d, char *text, size_t size);
/* Returns 1 if the value is known and equal in all layers. */
int dump_is_one(const struct dump_shared *s);
/* Returns "kvc", "llama.cpp GGSQ", ... */
const char *dump_format_name(const struct dump_file *f);
/* Returns the name of the next fingerprint from metadata entry *i on, and its value; NULL: none. */
const char *dump_fingerprint(const struct dump_file *f, size_t *i, struct kvc_meta_value *v);
/* Writes how the transform codec coded the first tensor of a role that it did; "": none. */
int dump_transform(const struct dump_file *f, const char *role, char *text, size_t size,
                   struct kvc_error *e);
/* Writes the positions of cells as "A:B", the position after the last being B. Returns `text`;
 * NULL: there are no cells. */
const char *dump_positions_text(const struct kvc_part_info *part, char *text, size_t size);
/* Returns bytes of the tensors divided by bytes of the file. */
double dump_ratio(const struct dump_facts *x);

/* --- the page (cli/html) --- */

/* How far a page has come, in bytes of stored records and of tensors. */
struct dump_progress {
    struct cli_progress line;
    uint64_t done, total;
};
void dump_progress_add(struct dump_progress *p, uint64_t bytes);

/* Writes the key "values" on the values of K, V and latents, of a bounded number of rows, and to
 * `out` how many were read. Values that cannot be decoded without something that is not there, as a
 * profile, are a note there. Returns -1 and the first damage in *e; what could be read is written.
 * Adds the bytes of the tensors to p->done. */
int dump_report_values(struct cli_json *j, FILE *out, const struct dump_file *f,
                       struct dump_progress *p, struct kvc_error *e);

#endif
