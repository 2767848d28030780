/* foreign.c: the table of well-known files that are not caches that kvc reads. A row is a test and a message. */
#include "formats/engines/foreign.h"

#include "formats/io/bytes.h"
#include "formats/io/json_text.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

/* bytes; larger headers are not searched: those of the files below have some tens of kilobytes */
#define MAX_HEADER (UINT64_C(4) << 20)

static const struct magic {
    const char *bytes;
    size_t size, offset;
    const char *text;
} magics[] = {
    {"GGUF", 4, 0, "it is a model's weights (GGUF), not a cache"},
    {"BZh", 3, 0, "it is compressed with bzip2; unpack it first (kvc undoes gzip, xz and zstd)"},
    {"\x04\x22\x4d\x18", 4, 0, "it is compressed with lz4; unpack it first (kvc undoes gzip, xz and zstd)"},
    {"7z\xbc\xaf\x27\x1c", 6, 0, "it is a 7z archive; unpack it first"},
    {"\x89HDF\r\n\x1a\n", 8, 0, "it is an HDF5 file; write its K and V as safetensors or npz"},
    {"version https://git-lfs", 23, 0, "it is a pointer of Git LFS in place of the file; fetch the file with: git lfs pull"},
    {"<!DOCTYPE", 9, 0, "it is a web page, as servers send in place of a file; download the file itself"},
    {"<!doctype", 9, 0, "it is a web page, as servers send in place of a file; download the file itself"},
    {"<html", 5, 0, "it is a web page, as servers send in place of a file; download the file itself"},
    {"\0\5\x16\7\0\2\0\0", 8, 0, "it is what macOS keeps beside a file (AppleDouble, ._NAME); the file itself is NAME"},
    {"\x93NUMPY", 6, 0, "it is one array (npy); write K and V of all layers with numpy.savez()"},
    {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14, 0,
     "it is a file of torch.save() from before PyTorch 1.6, or in that format; load it with torch.load() and save it again"},
};

static int has_magic(const struct kvc_input *in, const struct magic *m) {
    uint8_t bytes[24];
    return m->size <= sizeof bytes && in->size >= m->offset + m->size && !kvc_input_copy(in, m->offset, bytes, m->size, NULL) &&
           memcmp(bytes, m->bytes, m->size) == 0;
}

/* Returns the parsed header of a safetensors file that contains one of the words below, or NULL. */
static json_t *read_header(const struct kvc_input *in) {
    static const char *const words[] = {"\"kvc.profile\""};
    uint8_t head[9];
    json_t *header = NULL;
    if (in->size <= sizeof head || kvc_input_copy(in, 0, head, sizeof head, NULL) || head[8] != '{') return NULL;
    const uint64_t n = get_u64(head);
    if (!n || n > MAX_HEADER || n > in->size - 8 || kvc_input_pin(in, 8, n, NULL)) return NULL;
    for (size_t i = 0; i < sizeof words / sizeof words[0] && !header; i++)
        if (memmem(in->data + 8, (size_t)n, words[i], strlen(words[i]))) header = kvc_json_load(in->data + 8, (size_t)n, 0, NULL);
    kvc_input_unpin(in, 8, n);
    return header;
}

static const char *text_of(const json_t *meta, const char *key, const char *otherwise) {
    const char *text = json_string_value(json_object_get(meta, key));
    return text && *text ? text : otherwise;
}

/* Recognises a safetensors file by the names of its arrays or by its metadata. */
static int says_header(const json_t *header, char *text, size_t size) {
    const json_t *meta = json_object_get(header, "__metadata__");
    if (json_object_get(meta, "kvc.profile")) {
        const char *texts = text_of(meta, "texts", "");
        snprintf(text, size, "it is a profile (kvc-profile(5)) of %.200s, metric %.40s%s%.200s, not a cache",
                 text_of(meta, "model.name", "a model that it does not name"), text_of(meta, "metric", "unknown"),
                 *texts ? ", made of " : "", texts);
    } else {
        return 0;
    }
    return 1;
}

/* Files that builds of llama-server put beside a slot: its checkpoints. Sources: llama.cpp, pull requests 20819 and 24028. */
static int is_beside_slot(const struct kvc_input *in) {
    static const char suffix[] = ".checkpoints";
    static const struct magic magic = {"LSCKPT", 6, 0, NULL};
    const size_t n = in->name ? strlen(in->name) : 0, m = sizeof suffix - 1; /* the first bytes of a pipe have no name */
    return has_magic(in, &magic) || (n > m && strcmp(in->name + n - m, suffix) == 0);
}

int kvc_foreign(const struct kvc_input *in, char *text, size_t size) {
    for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++)
        if (has_magic(in, &magics[i])) {
            snprintf(text, size, "%s", magics[i].text);
            return 1;
        }
    if (is_beside_slot(in)) {
        snprintf(text, size,
                 "it is a file of server checkpoints that llama-server keeps beside a slot, not a cache; keep it as it is");
        return 1;
    }
    json_t *header = read_header(in);
    const int found = header && says_header(header, text, size);
    json_decref(header);
    return found;
}

/* --- of what no format takes --- */

static const char *last_name(const char *path) {
    const char *slash = strrchr(path, '/');
    return slash ? slash + 1 : path;
}

static int ends_in(const char *name, const char *end) {
    const size_t n = strlen(name), m = strlen(end);
    return n >= m && strcmp(name + n - m, end) == 0;
}

/* Returns 1 for names of LMCache's LocalDisk: MODEL@WORLD@RANK@HASH, and more in later versions. A pipe's first bytes have no
 * name. */
static int is_lmcache_key(const char *name) {
    unsigned at = 0;
    if (!name) return 0;
    for (const char *p = last_name(name); *p; p++) at += *p == '@';
    return at >= 3;
}

#define LOCAL_DISK                                                                                                         \
    "it is named as LMCache's LocalDisk names the bytes of a chunk, whose shape [2, layers, tokens, heads * dim] is kept " \
    "elsewhere "                                                                                                           \
    "(.meta); say it: --from=lmcache:dtype=bf16,layers=N,heads=H,dim=D"

int kvc_foreign_unknown(const struct kvc_input *in, char *text, size_t size) {
    static const char opcodes[] = "](}c)X\x95\x8c";
    uint8_t head[3];
    if (is_lmcache_key(in->name)) {
        snprintf(text, size, LOCAL_DISK);
        return 1;
    }
    if (kvc_foreign_by_bytes(in, text, size)) return 1;
    if (in->size < sizeof head || kvc_input_copy(in, 0, head, sizeof head, NULL)) return 0;
    if (head[0] != 0x80 || head[1] < 2 || head[1] > 5 || !memchr(opcodes, head[2], sizeof opcodes - 1)) return 0;
    snprintf(text, size,
             "it is a pickle of Python, and reading one may run any program, so kvc does not; load it, and save K and V as "
             "safetensors or "
             "with torch.save()");
    return 1;
}

int kvc_foreign_members(const struct kvc_bundle *b, char *text, size_t size) {
    int keys = 0, values = 0, entries = 0, index = 0, local = 0;
    for (size_t i = 0; i < b->n; i++) {
        const char *name = last_name(b->member[i].name);
        if (ends_in(name, ".pt") || ends_in(name, ".npy")) {
            keys |= strncmp(name, "key", 3) == 0 || strncmp(name, "k.", 2) == 0;
            values |= strncmp(name, "value", 5) == 0 || strncmp(name, "v.", 2) == 0;
        }
        entries += strncmp(name, "entry_", 6) == 0 && ends_in(name, ".safetensors");
        index |= strcmp(name, "index.json") == 0;
        local |= is_lmcache_key(name) && (ends_in(name, ".pt") || ends_in(name, ".meta"));
    }
    if (entries && index)
        snprintf(text, size,
                 "a folder of prompt caches of mlx-lm, each a file of its own; pack the files: entry_0.safetensors and so on");
    else if (keys && values)
        snprintf(text, size,
                 "K and V are files of their own, which kvc does not join; save both in one: torch.save({'key_cache': keys, "
                 "'value_cache': values}, file)");
    else if (local) snprintf(text, size, LOCAL_DISK);
    else return 0;
    return 1;
}

int kvc_member_is_beside(const char *name) {
    return strncmp(last_name(name), "._", 2) == 0;
}
