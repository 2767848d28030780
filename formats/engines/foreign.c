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
    {"\x93NUMPY", 6, 0, "it is one array (npy); write K and V of all layers with numpy.savez()"},
    {"\x80\x02\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 14, 0,
     "it is a file of torch.save() from before PyTorch 1.6, or in that format; load it with torch.load() and save it again"},
};

static int has_magic(const struct kvc_input *in, const struct magic *m) {
    uint8_t bytes[16];
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
