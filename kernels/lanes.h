/* lanes.h: byte tables that move vector lanes by a mask of 8 bits. For the x86 kernels only. */
#ifndef KVC_LANES_H
#define KVC_LANES_H

#include <stdint.h>

#define KVC_ONES_(m)                                                                                                 \
    (((m)&1) + ((m) >> 1 & 1) + ((m) >> 2 & 1) + ((m) >> 3 & 1) + ((m) >> 4 & 1) + ((m) >> 5 & 1) + ((m) >> 6 & 1) + \
     ((m) >> 7 & 1))
#define KVC_RANK_(m, l) ((uint64_t)KVC_ONES_((m) & ((1 << (l)) - 1)))
/* Byte l: the number of set lanes below l, which is the index of the word that lane l takes. */
#define KVC_EXPAND_(m)                                                                                                      \
    (KVC_RANK_(m, 1) << 8 | KVC_RANK_(m, 2) << 16 | KVC_RANK_(m, 3) << 24 | KVC_RANK_(m, 4) << 32 | KVC_RANK_(m, 5) << 40 | \
     KVC_RANK_(m, 6) << 48 | KVC_RANK_(m, 7) << 56)
/* The set lanes in ascending order in the highest bytes: stored words end where the previous words begin. */
#define KVC_PLACE_(m, l) ((uint64_t)((m) >> (l)&1) * (l) << (8 * (8 - KVC_ONES_(m) + (int)KVC_RANK_(m, l)) & 63))
#define KVC_COMPRESS_(m)                                                                                               \
    (KVC_PLACE_(m, 1) | KVC_PLACE_(m, 2) | KVC_PLACE_(m, 3) | KVC_PLACE_(m, 4) | KVC_PLACE_(m, 5) | KVC_PLACE_(m, 6) | \
     KVC_PLACE_(m, 7))

#define KVC_LANES_4_(f, m) f(m), f((m) + 1), f((m) + 2), f((m) + 3)
#define KVC_LANES_16_(f, m) KVC_LANES_4_(f, m), KVC_LANES_4_(f, (m) + 4), KVC_LANES_4_(f, (m) + 8), KVC_LANES_4_(f, (m) + 12)
#define KVC_LANES_64_(f, m) \
    KVC_LANES_16_(f, m), KVC_LANES_16_(f, (m) + 16), KVC_LANES_16_(f, (m) + 32), KVC_LANES_16_(f, (m) + 48)
#define KVC_LANES_256(f) KVC_LANES_64_(f, 0), KVC_LANES_64_(f, 64), KVC_LANES_64_(f, 128), KVC_LANES_64_(f, 192)

#endif
