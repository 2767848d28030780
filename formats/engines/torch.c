/* torch.c: files of torch.save(): a zip with a pickle that describes tensors, and their storages.
 * Not for opcodes of pickles (pickle.c). */
#include "formats/engines/torch.h"

#include "formats/engines/arrays_read.h"
#include "formats/io/bytes.h"

#include <stdio.h>
#include <string.h>

/* Recognises a zip whose first member is NAME/data.pkl. */
static int torch_probe_file(const struct kvc_input *in) {
    static const char member[] = "/data.pkl";
    const size_t n = sizeof member - 1;
    uint8_t head[30], end[sizeof member];
    if (in->size < sizeof head || kvc_input_copy(in, 0, head, sizeof head, NULL)) return 0;
    const size_t name = get_u16(head + 26);
    return memcmp(head, "PK\3\4", 4) == 0 && name >= n && in->size >= 30 + name &&
           !kvc_input_copy(in, 30 + name - n, end, n, NULL) && memcmp(end, member, n) == 0;
}

static int torch_probe(const struct kvc_bundle *b, char *why, size_t size) {
    snprintf(why, size,
             b->is_file ? "no zip that begins with data.pkl" : "no file is named *.pt or *.pth");
    for (size_t i = 0; i < b->n; i++) {
        if (!kvc_torch_is_read(b, i)) continue;
        const struct kvc_input *in = kvc_bundle_open(b, i, NULL);
        if (in && torch_probe_file(in)) return 1;
        if (!b->is_file) snprintf(why, size, "a file is no zip that begins with data.pkl");
    }
    return 0;
}

const struct kvc_format kvc_format_torch = {
    .name = "torch",
    .summary = "tensors of torch.save()",
    .suffix = ".pt",
    .takes_members = 1,
    .import_options = kvc_arrays_options,
    .source = KVC_SOURCE_TORCH,
    .lacks = KVC_LACKS_COORDINATES | KVC_LACKS_SNAPSHOTS | KVC_LACKS_METADATA | KVC_LACKS_PAIRING |
             KVC_LACKS_UNKNOWNS,
    .keeps = kvc_torch_keeps,
    .no_source = "the bytes of a PyTorch file with compressed members are not recorded",
    .probe = torch_probe,
    .import = kvc_torch_read,
    .export = kvc_torch_write,
};
