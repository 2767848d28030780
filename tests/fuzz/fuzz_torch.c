/* fuzz_torch.c: files of torch.save() from any bytes. Bytes that do not begin as a zip are the
 * pickle of a file with some storages, because the CRC-32 of a zip's members hides changed pickles
 * from the reader. */
#include "formats/io/zip_write.h"
#include "tests/fuzz/fuzz.h"

/* Writes a file of four storages of 96 bytes, "0" to "3", and "9", three integers of 64 bits. */
static void write_file(struct kvc_buffer *file, const uint8_t *pickle, size_t size) {
    static const uint8_t bytes[96] = {1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 3};
    static const char *const keys[] = {"x/data/0", "x/data/1", "x/data/2", "x/data/3", "x/data/9"};
    struct kvc_sink out = kvc_sink_buffer(file);
    struct kvc_zip_writer zip;
    struct kvc_error e;
    kvc_zip_writer_init(&zip, &out);
    int status = kvc_zip_add(&zip, "x/data.pkl", pickle, size, 64, &e);
    for (int i = 0; i < 5 && !status; i++)
        status = kvc_zip_add(&zip, keys[i], bytes, i < 4 ? 96 : 24, 64, &e);
    if (status || kvc_zip_finish(&zip, &e)) fuzz_die("cannot write a zip", &e);
    kvc_zip_writer_free(&zip);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    struct kvc_buffer file = {NULL, 0, 0};
    if (size >= 2 && memcmp(data, "PK", 2) == 0) {
        fuzz_engine_file(&kvc_format_torch, data, size);
        fuzz_arrays_as(&kvc_format_torch, data, size);
        return 0;
    }
    write_file(&file, data, size);
    fuzz_engine_file(&kvc_format_torch, file.data, file.n);
    fuzz_arrays_as(&kvc_format_torch, file.data, file.n);
    free(file.data);
    return 0;
}
