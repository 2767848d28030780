/* s3_xml.h: the XML of S3's answers: lists of objects, uploads, errors. Not for what follows from
 * them. */
#ifndef KVC_S3_XML_H
#define KVC_S3_XML_H

#include "codecs/error.h"

#include <stddef.h>
#include <stdint.h>

/* Bytes of a document. A list of 1 000 objects has some 500 KB. */
#define KVC_S3_XML_LIMIT (4u << 20)

struct kvc_s3_listing {
    struct kvc_s3_entry {
        char *key; /* decoded */
        uint64_t size;
        int64_t modified; /* seconds since 1970; 0: unknown */
    } * entry;
    size_t n;
    int more;   /* the list goes on, from `next` */
    char *next; /* continuation token; NULL: none */
};

/* Read whole documents. Their declarations (DOCTYPE) are refused, and with them entities. */
int kvc_s3_read_listing(struct kvc_s3_listing *l, const char *text, size_t size,
                        struct kvc_error *e);
void kvc_s3_listing_free(struct kvc_s3_listing *l);
/* Reads the id of an upload that was begun. */
int kvc_s3_read_upload(char id[1024], const char *text, size_t size, struct kvc_error *e);
/* Reads an error. 1: the document is one; 0: it is another one; -1: it is no XML. Texts keep
 * printable characters only. */
int kvc_s3_read_error(char code[64], char message[256], const char *text, size_t size);

#endif
