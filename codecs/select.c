/* select.c: the k-th smallest of many numbers, by quickselect. */
#include "codecs/select.h"

uint64_t kvc_select(uint64_t *v, size_t n, size_t k) {
    uint32_t state = 1; /* pivots at random places: no order of the input is a slow one */
    for (size_t low = 0, end = n; end - low > 1;) {
        state = state * 1664525 + 1013904223;
        const uint64_t pivot = v[low + (size_t)((uint64_t)(end - low) * state >> 32)];
        size_t i = low, j = end;
        while (i < j) {
            while (v[i] < pivot) i++;
            while (v[j - 1] > pivot) j--;
            if (i >= j) break;
            const uint64_t swapped = v[i];
            v[i++] = v[--j];
            v[j] = swapped;
        }
        /* v[low] to v[j - 1] are at most the pivot, v[i] to v[end - 1] at least; a value between
         * them is equal to the pivot */
        if (k < j) end = j;
        else if (k >= i) low = i;
        else break;
    }
    return v[k];
}
