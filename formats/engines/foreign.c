/* foreign.c: the table of well-known files that are not caches that kvc reads. A row is a test and
 * a message. */
#include "formats/engines/foreign.h"

#include "formats/engines/import.h"
#include "formats/engines/lmcache_chunk.h"
#include "formats/io/json_text.h"
#include "formats/io/member_name.h"

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
    {"\x04\x22\x4d\x18", 4, 0,
     "it is compressed with lz4; unpack it first (kvc undoes gzip, xz and zstd)"},
    {"7z\xbc\xaf\x27\x1c", 6, 0, "it is a 7z archive; unpack it first"},
    {"\x89HDF\r\n\x1a\n", 8, 0, "it is an HDF5 file; write its K and V as safetensors or npz"},
    {"version https://git-lfs", 23, 0,
     "it is a pointer of Git LFS in place of the file; fetch the file with: git lfs pull"},
    {"<!DOCTYPE", 9, 0,
     "it is a web page, as servers send in place of a file; download the file itself"},
    {"<!doctype", 9, 0,
     "it is a web page, as servers send in place of a file; download the file itself"},
    {"<html", 5, 0,
     "it is a web page, as servers send in place of a file; download the file itself"},
    {"LMCR\1\1", 6, 0,
     "it is a compressed record as LMCache once discussed it, which no release of LMCache writes; "
     "write the chunk with its FSConnector"},
    {"\x93NUMPY", 6, 0, "it is one array (npy); write K and V of all layers with numpy.savez()"},
    {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14, 0,
     "it is a file of torch.save() from before PyTorch 1.6, or in that format; load it with "
     "torch.load() and save it again"},
};

static int has_magic(const struct kvc_input *in, const struct magic *m) {
    uint8_t bytes[24];
    return m->size <= sizeof bytes && in->size >= m->offset + m->size &&
           !kvc_input_copy(in, m->offset, bytes, m->size, NULL) &&
           memcmp(bytes, m->bytes, m->size) == 0;
}

static const char *text_of(const json_t *meta, const char *key, const char *otherwise) {
    const char *text = json_string_value(json_object_get(meta, key));
    return text && *text ? text : otherwise;
}

static int says_profile(const struct kvc_input *in, char *text, size_t size) {
    static const char *const words[] = {"\"kvc.profile\"", NULL};
    uint64_t n;
    if (!kvc_member_header(in, MAX_HEADER, words, &n) || kvc_input_pin(in, 8, n, NULL)) return 0;
    json_t *header = kvc_json_load(in->data + 8, (size_t)n, 0, NULL);
    kvc_input_unpin(in, 8, n);
    const json_t *meta = json_object_get(header, "__metadata__");
    const int found = json_object_get(meta, "kvc.profile") != NULL;
    const char *texts = text_of(meta, "texts", "");
    if (found)
        snprintf(text, size,
                 "it is a profile (kvc-profile(5)) of %.200s, metric %.40s%s%.200s, not a cache",
                 text_of(meta, "model.name", "a model that it does not name"),
                 text_of(meta, "metric", "unknown"), *texts ? ", made of " : "", texts);
    json_decref(header);
    return found;
}

/* Recognises what programs keep beside a cache by its bytes, and checkpoints also by their name;
 * the first bytes of a pipe have none. Sources: llama.cpp, pull requests 20819 and 24028. */
static const char *says_beside(const struct kvc_input *in) {
    static const struct magic checkpoints = {"LSCKPT", 6, 0, NULL},
                              apple = {"\0\5\x16\7\0\2\0\0", 8, 0, NULL},
                              finder = {"\0\0\0\1Bud1", 8, 0, NULL};
    if (has_magic(in, &checkpoints) || (in->name && kvc_name_ends_in(in->name, ".checkpoints")))
        return "it is a file of server checkpoints that llama-server keeps beside a slot, not a "
               "cache; a folder or a tar archive of the slot and of this file keeps both";
    if (has_magic(in, &apple))
        return "it is what macOS keeps beside a file (AppleDouble, ._NAME); the file itself is "
               "NAME";
    if (has_magic(in, &finder)) return "it is what macOS keeps of a folder (.DS_Store)";
    return NULL;
}

int kvc_foreign(const struct kvc_input *in, char *text, size_t size) {
    for (size_t i = 0; i < sizeof magics / sizeof magics[0]; i++)
        if (has_magic(in, &magics[i])) {
            snprintf(text, size, "%s", magics[i].text);
            return 1;
        }
    const char *beside = says_beside(in);
    if (beside) {
        snprintf(text, size, "%s", beside);
        return KVC_FOREIGN_BESIDE;
    }
    return says_profile(in, text, size);
}

/* --- of what no format takes --- */

/* Says of a name that is a key of LMCache how its bytes are read. A pipe's first bytes have no
 * name. */
static int says_key(const char *name, char *text, size_t size) {
    struct kvc_lmcache_key key;
    if (!name || !kvc_lmcache_key_of(&key, name)) return 0;
    const struct kvc_dtype_info *info = kvc_import_dtype(key.dtype);
    snprintf(text, size,
             "it is named as LMCache's LocalDisk names the bytes of a chunk, whose shape [2, "
             "layers, tokens, heads * dim] is not in it; a JSON file NAME.meta beside it is read; "
             "without that, say --from=lmcache:dtype=%s,layers=N,heads=H,dim=D",
             info ? info->name : "bf16");
    return 1;
}

/* Returns 1 for NAME.meta beside a chunk of LMCache whose name is a key. */
static int is_beside_chunk(const char *name) {
    struct kvc_lmcache_key key;
    char chunk[512];
    if (!kvc_name_ends_in(name, ".meta") || strlen(name) >= sizeof chunk) return 0;
    snprintf(chunk, sizeof chunk, "%.*s", (int)(strlen(name) - strlen(".meta")), name);
    return kvc_lmcache_key_of(&key, chunk);
}

/* Recognises by its name what vllm-mlx (prefix_cache) and LMCache keep beside caches. */
static const char *says_name_beside(const char *name) {
    if (kvc_name_ends_in(name, "_tokens.bin"))
        return "it is named as the token ids beside a prompt cache, which are read with "
               "NAME.safetensors, or by --token-ids";
    if (strcmp(kvc_base_name(name), "index.json") == 0) return "it is an index of other files";
    if (is_beside_chunk(name))
        return "it describes a chunk of LMCache's LocalDisk, the file .pt beside it";
    return NULL;
}

int kvc_foreign_unknown(const struct kvc_input *in, char *text, size_t size) {
    static const char opcodes[] = "](}c)X\x95\x8c";
    uint8_t head[3];
    const char *beside = in->name ? says_name_beside(in->name) : NULL;
    if (beside) {
        snprintf(text, size, "%s", beside);
        return KVC_FOREIGN_BESIDE;
    }
    if (says_key(in->name, text, size)) return 1;
    if (kvc_foreign_by_bytes(in, text, size)) return 1;
    if (in->size < sizeof head || kvc_input_copy(in, 0, head, sizeof head, NULL)) return 0;
    if (head[0] != 0x80 || head[1] < 2 || head[1] > 5 ||
        !memchr(opcodes, head[2], sizeof opcodes - 1))
        return 0;
    snprintf(text, size,
             "it is a pickle of Python, and reading one may run any program, so kvc does not; load "
             "it, and save K and V as safetensors or with torch.save()");
    return 1;
}

int kvc_foreign_unknown_members(const struct kvc_bundle *b, char *text, size_t size) {
    for (size_t i = 0; i < b->n; i++)
        if (kvc_name_ends_in(b->member[i].name, ".pt") && says_key(b->member[i].name, text, size))
            return 1;
    return 0;
}
