/* token_ids.c: reads token ids in the JSON of engines, as a list, or of a cache file. */
#include "formats/file/token_ids.h"

#include "codecs/memory.h"
#include "formats/io/bytes.h"
#include "formats/io/input.h"
#include "formats/io/json_text.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define RANGE "token ids are whole numbers from 0 to 4294967295"

static int is_space(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

static int is_separator(char c) {
    return is_space(c) || c == ',';
}

/* Returns the first byte that is no white space, or 0. */
static char first_byte(const struct kvc_input *in) {
    for (uint64_t i = 0; i < in->size; i++)
        if (!is_space((char)in->data[i])) return (char)in->data[i];
    return 0;
}

/* Returns 1 if the bytes are a list: they begin with a digit, and contain no byte that only a cache
 * file has. */
static int is_list(const struct kvc_input *in) {
    for (uint64_t i = 0; i < in->size; i++)
        if (!is_separator((char)in->data[i]) && !strchr("+-.0123456789eE", in->data[i])) return 0;
    return memchr(in->data, '\0', (size_t)in->size) == NULL;
}

static int make_room(struct kvc_token_ids *ids, uint64_t n, struct kvc_error *e) {
    ids->id = kvc_alloc((uint64_t)n + 1, sizeof *ids->id);
    return ids->id ? 0 : kvc_fail_memory(e, "tokens");
}

/* --- numbers separated by white space or commas --- */

/* Reads the decimal number from *at on; -1 if there is no number, or it is no token id. */
static int take_id(const struct kvc_input *in, uint64_t *at, int32_t *id) {
    uint64_t n = 0, first = *at;
    for (; *at < in->size && in->data[*at] >= '0' && in->data[*at] <= '9'; ++*at) {
        n = 10 * n + (uint64_t)(in->data[*at] - '0');
        if (n > UINT32_MAX) return -1;
    }
    *id = (int32_t)(uint32_t)n;
    if (*at == first || (*at < in->size && !is_separator((char)in->data[*at]))) return -1;
    return 0;
}

static int read_list(const struct kvc_input *in, struct kvc_token_ids *ids, struct kvc_error *e) {
    /* an id and its separator have at least two bytes */
    if (make_room(ids, in->size / 2 + 1, e)) return -1;
    for (uint64_t at = 0; at < in->size;) {
        const uint64_t start = at;
        if (is_separator((char)in->data[at])) at++;
        else if (take_id(in, &at, &ids->id[ids->n++]))
            return kvc_fail_at(e, KVC_ERR_UNKNOWN_FORMAT, start, "%s: not a token id; " RANGE,
                               in->name);
    }
    return 0;
}

/* --- 32-bit numbers, as vllm-mlx writes them: NAME_tokens.bin --- */

static int is_raw(const struct kvc_input *in) {
    static const char end[] = "tokens.bin";
    const size_t n = strlen(in->name), m = sizeof end - 1;
    return n >= m && strcmp(in->name + n - m, end) == 0 && memchr(in->data, '\0', (size_t)in->size);
}

static int read_raw(const struct kvc_input *in, struct kvc_token_ids *ids, struct kvc_error *e) {
    if (in->size % 4)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                        "%s: has %" PRIu64 " bytes, which are no token ids of 32 bits", in->name,
                        in->size);
    if (make_room(ids, in->size / 4, e)) return -1;
    for (uint64_t i = 0; i < in->size / 4; i++)
        ids->id[ids->n++] = (int32_t)get_u32(in->data + 4 * i);
    return 0;
}

/* --- JSON --- */

/* Finds the array of ids in an engine's answer: the array itself, "tokens", "input_ids" or
 * "prompt_token_ids" of an object, or the only row of a batch. */
static const json_t *find_ids(const struct kvc_input *in, const json_t *root, struct kvc_error *e) {
    const json_t *x = root;
    if (json_is_object(root)) {
        static const char *const keys[] = {"tokens", "input_ids", "prompt_token_ids"};
        x = NULL;
        for (size_t i = 0; i < sizeof keys / sizeof keys[0] && !x; i++)
            x = json_object_get(root, keys[i]);
    }
    if (json_is_array(x) && json_is_array(json_array_get(x, 0))) {
        if (json_array_size(x) > 1) {
            kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                     "%s: holds %zu rows of token ids, and one prompt is wanted", in->name,
                     json_array_size(x));
            return NULL;
        }
        x = json_array_get(x, 0);
    }
    if (json_is_array(x)) return x;
    kvc_fail(
        e, KVC_ERR_UNKNOWN_FORMAT,
        "%s: is JSON without token ids: an array of them is wanted, or an object with 'tokens', "
        "'input_ids' or 'prompt_token_ids'",
        in->name);
    return NULL;
}

static int read_json(const struct kvc_input *in, struct kvc_token_ids *ids, struct kvc_error *e) {
    json_error_t why;
    json_t *root = kvc_json_load(in->data, (size_t)in->size, 0, &why);
    if (!root)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "%s: is no valid JSON: line %d, column %d: %s",
                        in->name, why.line, why.column, why.text);
    const json_t *list = find_ids(in, root, e);
    int status = list ? make_room(ids, json_array_size(list), e) : -1;
    for (size_t i = 0; !status && i < json_array_size(list); i++) {
        const json_t *x = json_array_get(list, i);
        /* an object of the id and its piece of text */
        if (json_is_object(x)) x = json_object_get(x, "id");
        const json_int_t id = json_integer_value(x);
        if (!json_is_integer(x) || id < 0 || id > (json_int_t)UINT32_MAX)
            status =
                kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                         "%s: element %zu of the tokens, counted from 0, is no token id; " RANGE,
                         in->name, i);
        ids->id[ids->n++] = (int32_t)(uint32_t)id;
    }
    json_decref(root);
    return status;
}

/* --- another cache --- */

static int read_cache(const struct kvc_input *in, const struct kvc_import_options *import,
                      struct kvc_token_ids *ids, struct kvc_error *e) {
    const struct kvc_format *format;
    struct kvc_cache *c = kvc_import_file(in, import, &format, e);
    if (!c && e->code == KVC_ERR_UNKNOWN_FORMAT)
        return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                        "%s: neither a list of token ids nor a cache file that kvc knows; a list "
                        "is text in UTF-8, numbers or "
                        "JSON, or in a file named *tokens.bin 32-bit numbers",
                        in->name);
    if (!c) return -1;
    ids->id = c->tokens;
    ids->n = c->n_tokens;
    c->tokens = NULL;
    c->n_tokens = 0;
    kvc_cache_free(c);
    return 0;
}

static int read_any(const struct kvc_input *in, const struct kvc_import_options *import,
                    struct kvc_token_ids *ids, struct kvc_error *e) {
    static const char utf16[2][3] = {"\xff\xfe", "\xfe\xff"};
    for (int i = 0; i < 2; i++)
        if (in->size >= 2 && memcmp(in->data, utf16[i], 2) == 0)
            return kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT,
                            "%s: is text in UTF-16; save it in UTF-8 (iconv -f UTF-16 -t UTF-8)",
                            in->name);
    if (is_raw(in)) return read_raw(in, ids, e);
    const char first = first_byte(in);
    if (first == '[' || first == '{') return read_json(in, ids, e);
    return is_list(in) ? read_list(in, ids, e) : read_cache(in, import, ids, e);
}

int kvc_token_ids_find(struct kvc_token_ids *ids, const char *path,
                       const struct kvc_import_options *import, struct kvc_error *e) {
    static const char bom[] = "\xef\xbb\xbf"; /* programs of Windows put it before UTF-8 */
    struct kvc_input in, text;
    *ids = (struct kvc_token_ids){.id = NULL};
    if (kvc_input_open_how(&in, path, &(struct kvc_input_how){.read = 0}, e)) return -1;
    const int has_bom = in.size >= 3 && memcmp(in.data, bom, 3) == 0;
    if (has_bom) kvc_input_memory(&text, in.name, in.data + 3, (size_t)in.size - 3);
    int status = read_any(has_bom ? &text : &in, import, ids, e);
    if (!status && !ids->n)
        status = kvc_fail(e, KVC_ERR_UNKNOWN_FORMAT, "%s: holds no token ids", in.name);
    kvc_input_close(&in);
    return status;
}
