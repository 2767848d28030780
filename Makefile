# kvc: tools for KV-cache files. `make help` lists the targets.
.DEFAULT_GOAL := all
.SECONDARY:
MAKEFLAGS += --no-builtin-rules
VERSION := 0.1.0
SOVERSION := 0

CC ?= cc
ifeq ($(origin CC),default)
CC := cc
endif
AR ?= ar
CFLAGS ?= -O2 -g
CPPFLAGS ?=
LDFLAGS ?=
LDLIBS ?=
PREFIX ?= /usr/local
BINDIR ?= $(PREFIX)/bin
LIBDIR ?= $(PREFIX)/lib
INCLUDEDIR ?= $(PREFIX)/include
MANDIR ?= $(PREFIX)/share/man
PKGCONFIGDIR ?= $(LIBDIR)/pkgconfig
DESTDIR ?=
INSTALL ?= install
PYTHON ?= python3
FUZZ_CC ?= clang
FUZZ_SECONDS ?= 60
# CUDA=auto|0|1 chooses whether device kernels are built. There are none yet: 1 is refused.
CUDA ?= auto
V ?= 0

DEPS := libzstd libxxhash libcrypto libarchive jansson
PKG_CFLAGS := $(shell pkg-config --cflags $(DEPS) 2>/dev/null)
PKG_LIBS := $(shell pkg-config --libs $(DEPS) 2>/dev/null)

WARN := -Wall -Wextra -Wpedantic -Wconversion -Werror
override KVC_CFLAGS := -std=c11 $(WARN) -ffp-contract=off -fPIC -fvisibility=hidden -pthread
override KVC_CPPFLAGS := -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DKVC_VERSION='"$(VERSION)"' $(PKG_CFLAGS)
override KVC_LDLIBS := $(PKG_LIBS) -lm -pthread

ALL_FLAGS := $(CC) $(KVC_CPPFLAGS) $(CPPFLAGS) $(KVC_CFLAGS) $(CFLAGS) $(LDFLAGS)
HASH := $(shell printf '%s' "$(subst ",,$(ALL_FLAGS))" | cksum | cut -d' ' -f1)
B := build/$(HASH)

ifeq ($(V),0)
Q := @
SAY = @printf '  %-6s %s\n'
else
Q :=
SAY = @true
endif

TOOLS := kvc-dump kvc-pack kvc-unpack kvc-diff
LIB_SRC := $(sort $(wildcard kernels/*.c codecs/*.c formats/*.c))
CLI_SRC := $(filter-out $(TOOLS:%=cli/%.c),$(sort $(wildcard cli/*.c)))
LIB_OBJ := $(LIB_SRC:%.c=$B/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$B/%.o)
UNIT_SRC := $(sort $(wildcard tests/unit/*.c))
UNIT_BIN := $(UNIT_SRC:%.c=$B/%)
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_NAMES := $(FUZZ_SRC:tests/fuzz/%.c=%)

ifeq ($(CUDA),1)
$(error CUDA=1: this version has no device kernels to build; use CUDA=auto or CUDA=0)
endif

## all: the four tools and the library
.PHONY: all
all: $(TOOLS) libkvc.a libkvc.so.$(VERSION) kvc.pc

## help: this list
.PHONY: help
help:
	@sed -n 's/^## //p' $(firstword $(MAKEFILE_LIST)) | awk -F': ' '{printf "  %-14s %s\n", $$1, $$2}'
	@echo "Variables: CC CFLAGS CPPFLAGS LDFLAGS LDLIBS PREFIX DESTDIR BINDIR LIBDIR MANDIR CUDA=auto|0|1 V=1"

$B/%.o: %.c
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(KVC_CPPFLAGS) $(CPPFLAGS) $(KVC_CFLAGS) $(CFLAGS) $(ISA) -MMD -MP -c -o $@ $<

$B/kernels/%_avx2.o: ISA := $(if $(filter x86_64,$(shell uname -m)),-mavx2 -mf16c)

$B/libkvc.a: $(LIB_OBJ)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$B/libkvc.so.$(VERSION): $(LIB_OBJ)
	$(SAY) LD $@
	$(Q)$(CC) $(KVC_CFLAGS) $(CFLAGS) $(LDFLAGS) -shared -Wl,-soname,libkvc.so.$(SOVERSION) -Wl,-z,defs -o $@ $^ $(KVC_LDLIBS) $(LDLIBS)

# what the tools share; an archive, so that each takes only what it uses
$B/libcli.a: $(CLI_OBJ)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$B/%: $B/cli/%.o $B/libcli.a $B/libkvc.a
	$(SAY) LD $@
	$(Q)$(CC) $(KVC_CFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $< $B/libcli.a $B/libkvc.a $(KVC_LDLIBS) $(LDLIBS)

$(TOOLS) libkvc.a libkvc.so.$(VERSION): %: $B/%
	$(Q)cp -f $< $@
.PHONY: $(TOOLS) libkvc.a libkvc.so.$(VERSION)

kvc.pc: Makefile
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' 'Name: kvc' \
	  'Description: KV-cache container files' 'Version: $(VERSION)' 'Requires.private: $(DEPS)' \
	  'Libs: -L$${libdir} -lkvc' 'Libs.private: -lm -pthread' 'Cflags: -I$${includedir}' > $@

$B/tests/unit/%: $B/tests/unit/%.o $B/libcli.a $B/libkvc.a
	$(SAY) LD $@
	$(Q)$(CC) $(KVC_CFLAGS) $(CFLAGS) $(LDFLAGS) -o $@ $< $B/libcli.a $B/libkvc.a -lcmocka $(KVC_LDLIBS) $(LDLIBS)

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TOOLS:%=$B/cli/%.d) $(UNIT_BIN:%=%.d)
