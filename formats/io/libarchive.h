/* libarchive.h: libarchive's functions, loaded when they are first needed. The tools mostly read
 * files that are no archives, and loading libarchive with all that it depends on would take longer
 * than the rest of their start. Not for what is read or written. */
#ifndef KVC_LIBARCHIVE_H
#define KVC_LIBARCHIVE_H

#include "codecs/error.h"

#include <archive.h>
#include <archive_entry.h>

/* The functions that kvc calls, without their prefix archive_. */
/* clang-format off */
#define KVC_LIBARCHIVE_FUNCTIONS(X) \
    X(entry_clear) X(entry_filetype) X(entry_free) X(entry_hardlink) X(entry_new) X(entry_pathname) \
    X(entry_set_filetype) X(entry_set_mtime) X(entry_set_pathname) X(entry_set_perm) X(entry_set_size) \
    X(entry_size) X(entry_size_is_set) X(error_string) X(read_data_block) X(read_free) X(read_new) \
    X(read_next_header) X(read_open) X(read_open1) X(read_set_callback_data) X(read_set_read_callback) \
    X(read_set_seek_callback) X(read_set_skip_callback) X(read_support_filter_xz) X(read_support_filter_zstd) \
    X(read_support_format_raw) X(read_support_format_tar) X(read_support_format_zip_seekable) X(set_error) \
    X(write_close) X(write_data) X(write_finish_entry) X(write_free) X(write_header) X(write_new) \
    X(write_open) X(write_set_bytes_in_last_block) X(write_set_format_option) X(write_set_format_pax_restricted) \
    X(write_set_format_zip) X(write_set_options)
/* clang-format on */

#define KVC_LIBARCHIVE_MEMBER(name) __typeof__(archive_##name) *name;
struct kvc_libarchive {
    KVC_LIBARCHIVE_FUNCTIONS(KVC_LIBARCHIVE_MEMBER)
};
#undef KVC_LIBARCHIVE_MEMBER

/* Legal to use after kvc_libarchive_load() has returned 0. */
extern struct kvc_libarchive kvc_libarchive;

/* Loads libarchive, once for the process; safe to call from several threads. Returns 0, or -1 with
 * an error that says why the library cannot be loaded. */
int kvc_libarchive_load(struct kvc_error *e);

#endif
