/* test_ggml_blocks.c: weights in ggml's block types, against values that gguf-py dequantised
 * (tests/engine/ggml_blocks.py prints the table), and files whose blocks are not whole. */
#include "weights_support.h"

enum { BLOCKS = 64, MOST_BYTES = BLOCKS * 210 };

static const struct {
    unsigned number;           /* of enum ggml_type */
    unsigned values, bytes;    /* of a block */
    unsigned half[2];          /* where its scales in binary16 are */
    const char *name, *digest; /* SHA-256 of BLOCKS blocks as binary32 */
} types[] = {
    {8, 32, 34, {0, 0}, "q8_0", "bc0f260c3cbd7e4ee81c277dae87137f2bb37e5ce85d8e3cd740a49f542675c0"},
    {2, 32, 18, {0, 0}, "q4_0", "3ef0d3296ae54113061ecd2cae8ad3ddd595e579f4f277ed6a4660aa59abc01c"},
    {3, 32, 20, {0, 2}, "q4_1", "f34a5564c784eef48bb41aa68e5ba682b96bb2f73661a9884b12517feb5ec6d2"},
    {6, 32, 22, {0, 0}, "q5_0", "585c5362b83eb1ef9dea26a9b9be47ccbf7fb8ebe75f1b7017806dd8feeebce0"},
    {7, 32, 24, {0, 2}, "q5_1", "8dba97118adf451be27f9af552af90d7343c11e7a489c186c3f065878c21d671"},
    {20,
     32,
     18,
     {0, 0},
     "iq4_nl",
     "5e82118e4cfa8e85950814eeb8125696746433d7b11cf662944d027d530480fa"},
    {10,
     256,
     84,
     {80, 82},
     "q2_K",
     "1134c9fc72a3e7679b2b9367a71cf65bd0936c2f92142c05fa69341c31fd3aa2"},
    {11,
     256,
     110,
     {108, 108},
     "q3_K",
     "a86b71614a8603c6b5af2f190c047b5ccbbb10bbd31116971111911744ba61e3"},
    {12,
     256,
     144,
     {0, 2},
     "q4_K",
     "b8c8e2dffaacfaf94f038fa46dc113faab1b0aabfa40e4636fd131721434ceff"},
    {13,
     256,
     176,
     {0, 2},
     "q5_K",
     "bce88929e67abac5225dd19a317948a6bcf3dc62af121c9abfae74ee6b618b9d"},
    {14,
     256,
     210,
     {208, 208},
     "q6_K",
     "1ff818bdce2c14125b7b1dbc9e26fcfb926ab86a9b341cc20c6d68d6489f3a68"},
    {23,
     256,
     136,
     {0, 0},
     "iq4_xs",
     "2d5567ce23e68149d1ba060d6bd812f7ae0006ac5238bd18c07fc7cdb1f8417e"},
};
enum { TYPES = sizeof types / sizeof types[0] };

/* Fills blocks with numbers; scales are below 2. */
static void make_blocks(uint8_t *to, size_t type) {
    uint64_t x = 1;
    for (size_t i = 0; i < BLOCKS * types[type].bytes; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        to[i] = (uint8_t)(x >> 56);
    }
    for (size_t b = 0; b < BLOCKS; b++)
        for (size_t i = 0; i < 2; i++) to[b * types[type].bytes + types[type].half[i] + 1] &= 0xbf;
}

/* Writes a file whose K and V are the blocks, one in a row. Returns what a cache must have. */
static struct kvc_projection_shape put_blocks(size_t type, uint8_t *blocks) {
    const struct kvc_projection_shape shape = {types[type].values, 8, BLOCKS / 8,
                                               BLOCKS / 8,         0, KVC_PAIRING_HALVES};
    const float *values = (const float *)(const void *)blocks;
    const struct tensor t[] = {{gg[0], types[type].number, 2, {BLOCKS, shape.in}, values},
                               {gg[1], types[type].number, 2, {BLOCKS, shape.in}, values}};
    block_values = types[type].values;
    block_bytes = types[type].bytes;
    put_gguf("w.gguf", "qwen2", t, 2);
    block_bytes = 0;
    return shape;
}

static void assert_digest(const float *transposed, size_t type) {
    float *rows = malloc(BLOCKS * types[type].values * sizeof *rows);
    uint8_t hash[KVC_SHA256_BYTES];
    char text[2 * KVC_SHA256_BYTES + 1];
    struct kvc_error e;
    assert_non_null(rows);
    for (size_t b = 0; b < BLOCKS; b++)
        for (size_t i = 0; i < types[type].values; i++)
            rows[b * types[type].values + i] = transposed[i * BLOCKS + b];
    assert_int_equal(kvc_sha256(rows, BLOCKS * types[type].values * sizeof *rows, hash, &e), 0);
    for (size_t i = 0; i < sizeof hash; i++) snprintf(text + 2 * i, 3, "%02x", hash[i]);
    if (strcmp(text, types[type].digest) != 0) fail_msg("%s: %s", types[type].name, text);
    free(rows);
}

/* Values are those of gguf-py, bit for bit. */
static void test_digests(void **state) {
    (void)state;
    static uint8_t blocks[MOST_BYTES];
    for (size_t i = 0; i < TYPES; i++) {
        make_blocks(blocks, i);
        const struct kvc_projection_shape shape = put_blocks(i, blocks);
        struct kvc_projection p = load(in_folder("w.gguf"), 3, &shape);
        assert_digest(p.k, i);
        assert_digest(p.v, i);
        kvc_projection_free(&p);
    }
    drop_file("w.gguf");
}

/* Rows that are no whole blocks, and files that end in the last block or before. */
static void test_not_whole(void **state) {
    (void)state;
    static uint8_t blocks[MOST_BYTES];
    char words[96];
    for (size_t i = 0; i < TYPES; i++) {
        struct kvc_projection_shape shape = put_blocks(i, blocks);
        struct kvc_input in;
        struct kvc_error e;
        assert_int_equal(kvc_input_open(&in, in_folder("w.gguf"), &e), 0);
        /* the last tensor and what fills its last 32 bytes */
        const size_t whole = (size_t)in.size, tensor = BLOCKS * types[i].bytes,
                     end = whole - (32 - tensor % 32) % 32;
        uint8_t *copy = malloc(whole);
        assert_non_null(copy);
        memcpy(copy, in.data, whole);
        kvc_input_close(&in);
        const size_t cut[] = {1, types[i].bytes, tensor - 1};
        for (size_t c = 0; c < 3; c++) {
            put_file("w.gguf", copy, end - cut[c]);
            assert_refused(in_folder("w.gguf"), 3, &shape, KVC_ERR_DAMAGED, "cut short");
        }
        put_file("w.gguf", copy, end);
        struct kvc_projection p = load(in_folder("w.gguf"), 3, &shape);
        kvc_projection_free(&p);
        free(copy);
        const struct tensor ragged[] = {
            {gg[0], types[i].number, 2, {BLOCKS, types[i].values + 16}, NULL}};
        put_gguf("w.gguf", "qwen2", ragged, 1);
        shape.in = types[i].values + 16;
        snprintf(words, sizeof words, "dimensions that no tensor of %s can have", types[i].name);
        assert_refused(in_folder("w.gguf"), 3, &shape, KVC_ERR_DAMAGED, words);
    }
    drop_file("w.gguf");
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_digests),
        cmocka_unit_test(test_not_whole),
    };
    return cmocka_run_group_tests_name("ggml_blocks", tests, make_folder, remove_folder);
}
