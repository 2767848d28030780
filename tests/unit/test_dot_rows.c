/* test_dot_rows.c: products of small integers, in every table that this CPU runs, and by AMX's
 * tiles computed in C, on any CPU. Not for what predicts (test_predict.c). */
#include "kernels_support.h"

/* --- what kernels/tiles.h has, in C --- */

#define KVC_TILES
#include "kernels/tiles.h"

static struct {
    struct kvc_tile_shapes shape;
    int begun;
    uint8_t tile[8][16][64];
} amx;

static void kvc_tiles_begin(const struct kvc_tile_shapes *shape) {
    assert_int_equal(sizeof *shape, 64);
    assert_int_equal(shape->palette, 1);
    memset(&amx, 0, sizeof amx);
    amx.shape = *shape;
    amx.begun = 1;
}

static void kvc_tiles_end(void) {
    memset(&amx, 0xa5, sizeof amx);
    amx.begun = 0;
}

/* A tile without rows, or with more than there are, ends a process. */
static size_t rows_of(unsigned t) {
    assert_true(amx.begun);
    assert_in_range(amx.shape.rows[t], 1, 16);
    assert_in_range(amx.shape.row_bytes[t], 1, 64);
    return amx.shape.rows[t];
}

static void zero(unsigned t) {
    rows_of(t);
    memset(amx.tile[t], 0, sizeof amx.tile[t]);
}

static void load(unsigned t, const void *from, size_t step) {
    zero(t);
    for (size_t r = 0; r < rows_of(t); r++)
        memcpy(amx.tile[t][r], (const uint8_t *)from + r * step, amx.shape.row_bytes[t]);
}

static void store_tile(unsigned t, void *to, size_t step) {
    for (size_t r = 0; r < rows_of(t); r++)
        memcpy((uint8_t *)to + r * step, amx.tile[t][r], amx.shape.row_bytes[t]);
}

/* As Intel's manual has TDPBSSD, and refuses the shapes that it refuses. */
static void multiply_tiles(unsigned c, unsigned a, unsigned b) {
    const size_t rows = rows_of(c), columns = amx.shape.row_bytes[c] / 4u, fours = rows_of(b);
    assert_int_equal(rows_of(a), rows);
    assert_int_equal(amx.shape.row_bytes[a], 4 * fours);
    assert_int_equal(amx.shape.row_bytes[b], 4 * columns);
    for (size_t m = 0; m < rows; m++)
        for (size_t k = 0; k < fours; k++)
            for (size_t n = 0; n < columns; n++) {
                int32_t sum;
                memcpy(&sum, amx.tile[c][m] + 4 * n, sizeof sum);
                for (size_t i = 0; i < 4; i++)
                    sum += (int8_t)amx.tile[a][m][4 * k + i] * (int8_t)amx.tile[b][k][4 * n + i];
                memcpy(amx.tile[c][m] + 4 * n, &sum, sizeof sum);
            }
}

#define KVC_TILE_ZERO(t) zero(t)
#define KVC_TILE_LOAD(t, from, step) load(t, from, step)
#define KVC_TILE_STORE(t, to, step) store_tile(t, to, step)
#define KVC_TILE_MULTIPLY(c, a, b) multiply_tiles(c, a, b)

#define kvc_dot_rows_amx dot_rows_in_c
#include "kernels/predict_amx.c"

/* --- tests --- */

static void multiplies(kvc_dot_rows_fn *dot_rows, const struct kvc_dot_matrix *m, const int8_t *x,
                       size_t rows, const float *want) {
    const size_t size = 4 * rows * m->outputs;
    float *y = noise(size);
    dot_rows(y, x, rows, m);
    assert_memory_equal(y, want, size);
    free(y);
}

/* Multiplies exactly, in memory of exactly the size that is needed. most: of the largest sums that
 * there are. */
static void all_multiply(size_t rows, size_t outputs, size_t inputs, int most) {
    const size_t bytes = kvc_dot_bytes(outputs, inputs);
    int8_t *x = malloc(rows * inputs), *w = calloc(bytes, 1);
    float *numbers = malloc(4 * 2 * outputs), *want = malloc(4 * rows * outputs);
    const struct kvc_dot_matrix m = {outputs, inputs, w, numbers, numbers + outputs};
    fill_with(common_float, numbers, 2 * outputs);
    for (size_t i = 0; i < rows * inputs; i++)
        x[i] = (int8_t)(most ? -127 : (int)(random_u16() % 255) - 127);
    for (size_t i = 0; i < outputs; i++)
        for (size_t j = 0; j < inputs; j++)
            w[kvc_dot_place(inputs, i, j)] = (int8_t)(most ? 127 : (int)(random_u16() % 255) - 127);
    for (size_t r = 0; r < rows; r++)
        for (size_t i = 0; i < outputs; i++) {
            int64_t sum = 0;
            for (size_t j = 0; j < inputs; j++)
                sum += (int64_t)x[r * inputs + j] * w[kvc_dot_place(inputs, i, j)];
            volatile float product = (float)sum * m.scale[i];
            want[r * outputs + i] = product + m.mean[i];
        }
    for (const char *const *name = kvc_kernels_names(); *name; name++)
        if (kvc_kernels_find(*name))
            multiplies(kvc_kernels_find(*name)->dot_rows, &m, x, rows, want);
    multiplies(kvc_kernels_get()->dot_rows, &m, x, rows, want);
    multiplies(dot_rows_in_c, &m, x, rows, want);
    free(x), free(w), free(numbers), free(want);
}

/* Sums of products of small integers are exact, whatever their order. */
static void integers_are_multiplied(void **state) {
    static const size_t some[] = {0, 4, 8, 12, 60, 64, 68, 80, 252, 256, 260, 1028};
    (void)state;
    for (size_t rows = 1; rows <= 9; rows += rows < 5 ? 1 : 4)
        for (size_t outputs = 1; outputs <= 90; outputs += outputs < 18 ? 1 : 23)
            for (size_t k = 0; k < sizeof some / sizeof *some; k++)
                all_multiply(rows, outputs, some[k], (rows + outputs) % 3 == 0);
}

/* Rows, inputs and outputs are taken by so many at once that some are left over everywhere. */
static void pieces_are_joined(void **state) {
    static const size_t rows[] = {15, 16, 17, 31, 32, 33, 48, 257, 300}, outputs[] = {17, 64, 81},
                        inputs[] = {64, 2116};
    (void)state;
    for (size_t r = 0; r < sizeof rows / sizeof *rows; r++)
        for (size_t o = 0; o < sizeof outputs / sizeof *outputs; o++)
            for (size_t i = 0; i < sizeof inputs / sizeof *inputs; i++)
                if (rows[r] < 64 || outputs[o] < 64 || inputs[i] < 100)
                    all_multiply(rows[r], outputs[o], inputs[i], 0);
}

/* Each weight has a place of its own, and those of a tensor's inputs follow from the first. */
static void weights_have_places(void **state) {
    (void)state;
    for (size_t outputs = 1; outputs <= 40; outputs += 13)
        for (size_t inputs = 4; inputs <= 20; inputs += 8) {
            const size_t bytes = kvc_dot_bytes(outputs, inputs);
            uint8_t *used = calloc(bytes, 1);
            for (size_t i = 0; i < outputs; i++)
                for (size_t j = 0; j < inputs; j++) {
                    const size_t at = kvc_dot_place(inputs, i, j);
                    assert_true(at < bytes && !used[at]);
                    assert_int_equal(at, kvc_dot_place(inputs, i, 0) + kvc_dot_place(inputs, 0, j));
                    used[at] = 1;
                }
            free(used);
        }
    assert_int_equal(kvc_dot_stride(0), 0);
    assert_int_equal(kvc_dot_stride(5), 8);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(integers_are_multiplied),
        cmocka_unit_test(pieces_are_joined),
        cmocka_unit_test(weights_have_places),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
