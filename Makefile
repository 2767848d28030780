# kvc: tools for KV-cache files. `make help` lists the targets.
.DEFAULT_GOAL := all
.SECONDARY:
MAKEFLAGS += --no-builtin-rules
VERSION := $(shell sed -n "s/^.define KVC_VERSION_[MP][A-Z]* //p" formats/api/kvc.h | paste -sd.)
# of the shared libraries and of their symbols: what a version's first number promises
SOVERSION := $(firstword $(subst ., ,$(VERSION)))

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
DATADIR ?= $(PREFIX)/share/kvc
DOCDIR ?= $(PREFIX)/share/doc/kvc
MIMEDIR ?= $(PREFIX)/share/mime/packages
BASHDIR ?= $(PREFIX)/share/bash-completion/completions
ZSHDIR ?= $(PREFIX)/share/zsh/site-functions
FISHDIR ?= $(PREFIX)/share/fish/vendor_completions.d
DESTDIR ?=
INSTALL ?= install
STRIP ?= strip
PKG_CONFIG ?= pkg-config
PYTHON ?= python3
FUZZ_CC ?= clang
FUZZ_SECONDS ?= 60
# CUDA=auto|0|1 chooses whether libkvc_cuda is built: where nvcc is found, not at all, or else fail.
CUDA ?= auto
CUDA_HOME ?= /usr/local/cuda
CUDA_ARCHS ?= 80 90 100
NVCCFLAGS ?=
# WERROR=1 makes every warning an error, as .ci/run does. A compiler that kvc has not met yet may have warnings of its own.
WERROR ?= 0
# HARDEN=1 adds checks of buffers and of the stack, and read-only relocations.
HARDEN ?= 0
V ?= 0

DEPS := libzstd libxxhash libcrypto jansson zlib
# libarchive is not linked: the tools load it when they meet an archive (formats/io/libarchive.h)
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(DEPS) libarchive 2>/dev/null)
PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(DEPS) 2>/dev/null)

# clang has no stricter form of -Wcast-align, and from version 19 on warns where an enum, as constants are named here, meets a double
WARN_OF_CC := $(if $(findstring clang,$(shell $(CC) --version 2>/dev/null)),-Wcast-align -Wno-enum-float-conversion,-Wcast-align=strict)
WARN := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wundef \
  -Wvla -Wpointer-arith -Wredundant-decls -Wwrite-strings -Wformat=2 -Wcast-qual $(WARN_OF_CC) \
  -Wdouble-promotion $(if $(filter 1,$(WERROR)),-Werror)
# protected: what is no API is exported too, for the libraries over libkvc, but calls within a library stay direct
override KVC_CFLAGS := -std=c11 $(WARN) -ffp-contract=off -fPIC -fvisibility=protected -pthread
ifeq ($(HARDEN),1)
override KVC_CFLAGS += -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=3 -fstack-protector-strong
HARD_LINK := -Wl,-z,relro,-z,now
PIE := -pie
endif
override KVC_CPPFLAGS := -I. -D_GNU_SOURCE -D_FILE_OFFSET_BITS=64 -DKVC_VERSION='"$(VERSION)"' $(PKG_CFLAGS)
override KVC_LDLIBS := $(PKG_LIBS) -lm -ldl -pthread

ALL_FLAGS := $(CC) $(KVC_CPPFLAGS) $(CPPFLAGS) $(KVC_CFLAGS) $(CFLAGS) $(LDFLAGS) $(PKG_LIBS)
HASH := $(shell printf '%s' "$(subst ",,$(ALL_FLAGS))" | cksum | cut -d' ' -f1)
B := build/$(HASH)

ifeq ($(V),0)
Q := @
SAY = @printf '  %-6s %s\n'
else
Q :=
SAY = @true
endif

TOOLS := kvc-dump kvc-pack kvc-unpack kvc-diff kvc-store kvc-profile
# the folders cuda/ are part of libkvc_cuda alone, and store/ of libkvc_store
LIB_SRC := $(filter-out formats/store/%,$(sort $(wildcard $(addsuffix /*.c,kernels kernels/device codecs codecs/*/* formats/*))))
CLI_SRC := $(filter-out $(TOOLS:%=cli/%.c),$(sort $(wildcard cli/*.c cli/*/*.c)))
LIB_OBJ := $(LIB_SRC:%.c=$B/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$B/%.o) $B/cli/html/template.o

## all: the six tools and the libraries, libkvc_cuda where there is nvcc, and the store's backends where there are their packages
.PHONY: all
all: $(TOOLS) libkvc.a libkvc.so.$(VERSION) kvc.pc store cuda python/kvc/version.py

## help: this list
.PHONY: help
help:
	@sed -n 's/^## //p' Makefile formats/device/cuda/cuda.mk $(wildcard formats/store/*.mk formats/store/*/*.mk) packaging/packaging.mk tests/tests.mk | sed 's/^\([a-z0-9, -]*\): /\1 /' | while read -r t d; do printf '  %-17s %s\n' "$$t" "$$d"; done
	@echo "Variables: CC CFLAGS CPPFLAGS LDFLAGS LDLIBS PREFIX DESTDIR BINDIR LIBDIR MANDIR DATADIR DOCDIR MIMEDIR BASHDIR ZSHDIR FISHDIR CUDA=auto|0|1 CUDA_HOME CUDA_ARCHS NVCCFLAGS WERROR=1 HARDEN=1 V=1"

# No path of this machine is in the debugging information: the same sources give the same bytes in any folder.
NO_PATHS := '-ffile-prefix-map=$(CURDIR)=.'

# links a program, or with -shared a library
COMPILE = $(Q)$(CC) $(KVC_CPPFLAGS) $(CPPFLAGS) $(KVC_CFLAGS) $(NO_PATHS) $(CFLAGS) $(ISA) -MMD -MP -c -o $@
LINK = $(Q)$(CC) $(KVC_CFLAGS) $(NO_PATHS) $(CFLAGS) $(HARD_LINK) $(LDFLAGS) -o $@
LIBS = $(KVC_LDLIBS) $(LDLIBS)
# GNU ld before 2.38, as RHEL 9 has, refuses addresses of protected functions, unless it is told that they are the library's own.
LINK_OWN = $(LINK) -shared -Wl,-Bsymbolic-functions
# links a shared library with the soname of its file, and gives it that name beside it
LINK_SHARED = $(LINK_OWN) -Wl,-soname,$(@F:%.so.$(VERSION)=%.so.$(SOVERSION)) -Wl,-z,defs -Wl,--version-script=$(filter %.map,$^) \
  $(filter %.o,$^) $(filter %.so.$(VERSION),$^) $(RPATH:%=-Wl,-rpath,%)
NAME_SHARED = $(Q)ln -sf $(@F) $(@:%.so.$(VERSION)=%.so.$(SOVERSION))
# Where tools and libraries look for libkvc, beside the system's folders: in the build's folders, and in ../lib as installed.
# RPATH= builds without; packages need none.
RPATH ?= '$$ORIGIN:$$ORIGIN/..:$$ORIGIN/../lib'

# Before anything is compiled: does kvc support the machine that CC, if there is one, compiles for? Are the packages there?
$B/ready: kernels/target.h
	@! command -v $(firstword $(CC)) >/dev/null || $(CC) $(CPPFLAGS) $(CFLAGS) -E -x c $< >/dev/null
	@sh tests/deps.sh check build
	@mkdir -p $(@D) && touch $@

$B/%.o: %.c | $B/ready
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(COMPILE) $<
$B/tests/%.o: override KVC_CFLAGS += -Wno-double-promotion
# Unit tests spend their time in the library. With -O1 they are compiled in two thirds of the time, under sanitizers in a third.
$B/tests/unit/%.o: ISA := -O1

# The compiler knows the machine it compiles for. It is asked once, and only when a kernel is compiled.
MACHINE = $(eval MACHINE := $(shell $(CC) $(CPPFLAGS) $(CFLAGS) -dM -E -x c /dev/null | grep -owE '__(x86_64|aarch64)__'))$(MACHINE)
AVX2 = $(if $(filter __x86_64__,$(MACHINE)),-mavx2 -mf16c -mfma)
AVX512 = $(if $(AVX2),-mavx512f -mavx512bw -mavx512vl -mavx512dq -mbmi)
NEONDOT = $(if $(filter __aarch64__,$(MACHINE)),-march=armv8.2-a+dotprod)
# A loop of few instructions is up to 1.3 times slower where it crosses 32 bytes, which any change elsewhere in the file can cause.
$(foreach set,vec avx2 avxvnni,$B/kernels/%_$(set).o $B/fuzz/kernels/%_$(set).o): ISA = $(AVX2) $(if $(AVX2),-falign-loops=32)
$(foreach set,avx512 amx,$B/kernels/%_$(set).o $B/fuzz/kernels/%_$(set).o): ISA = $(AVX512)
$B/kernels/%_neondot.o $B/fuzz/kernels/%_neondot.o: ISA = $(NEONDOT)

$B/cli/gpu.o: ISA := '-DKVC_CUDA_SONAME="libkvc_cuda.so.$(SOVERSION)"'

# The version of the Python package, which is in git: without make there is no other.
python/kvc/version.py: formats/api/kvc.h
	$(Q){ echo '"""The version of kvc.h, from which make writes this file."""' && echo && echo 'VERSION = "$(VERSION)"'; } >$B/version.py && \
	  { cmp -s $B/version.py $@ || cp $B/version.py $@; }

# where profiles and kvc-profile make's program are installed is compiled in; DATADIR may have changed
$B/profiles-folder: FORCE
	@mkdir -p $(@D) && { echo '$(DATADIR)/profiles' | cmp -s - $@ || echo '$(DATADIR)/profiles' >$@; }
.PHONY: FORCE
$B/formats/model/profile_folders.o: ISA := '-DKVC_PROFILES="$(DATADIR)/profiles"'
$B/cli/profile/profile_make.o: ISA := '-DKVC_DATA="$(DATADIR)"'
$B/formats/model/profile_folders.o $B/cli/profile/profile_make.o: $B/profiles-folder

# The pages of --html come from one template, whose lines are strings of a C file. It is in the tools: nothing more is installed.
# Empty lines and comments on lines of their own are left out. \? keeps the ?? of JavaScript from being a trigraph.
$B/cli/html/template.c: share/page.html Makefile
	@mkdir -p $(@D)
	$(Q){ echo '#include "cli/html/page.h"' && echo 'const char *const html_template[] = {' && \
	  sed -e '/^ *\/[/*]/d' -e '/^ *$$/d' -e 's/[\\"?]/\\&/g' -e 's/.*/    "&",/' $< && echo '    NULL};'; } >$@
$B/cli/html/template.o: $B/cli/html/template.c | $B/ready
	$(SAY) CC $<
	$(COMPILE) $<

$B/libkvc.a: $(LIB_OBJ)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# What a shared library exports: the functions that its header declares, as symbols of the version KVC_SOVERSION. The rest is for the
# tools and libraries of the same build, under a version that no other release has.
$B/%.map: formats/api/%.h formats/api/kvc.h
	@mkdir -p $(@D)
	$(Q){ echo 'KVC_$(SOVERSION) { global:'; sed -n '/^KVC_[A-Z_]*API /{ /(/!{ N; s/\n/ /; }; s/^[^(]*[ *]\(kvc_[a-z0-9_]*\)(.*/  \1;/p; }' $< $(filter $(MAP_TOO),$^); \
	  echo '}; KVC_PRIVATE_$(VERSION) { global: kvc_*; local: *; };'; } >$@

MAP_TOO := formats/api/kvc_inspect.h formats/api/kvc_comparing.h
$B/kvc.map: $(MAP_TOO)
$B/libkvc.so.$(VERSION): $(LIB_OBJ) $B/kvc.map
	$(SAY) LD $@
	$(LINK_SHARED) $(LIBS)
	$(NAME_SHARED)

# what the tools share; an archive, so that each takes only what it uses
$B/libcli.a: $(CLI_OBJ)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$B/%: $B/cli/%.o $B/libcli.a $B/libkvc.so.$(VERSION)
	$(SAY) LD $@
	$(LINK) $(PIE) $^ $(RPATH:%=-Wl,-rpath,%) $(LIBS)

# A running program keeps the file that it has mapped: copies are new files.
COPY = $(Q)rm -f $@ && cp $< $@
$(TOOLS) libkvc.a: %: $B/%
	$(COPY)
libkvc.so.$(VERSION): %: $B/%
	$(COPY)
	$(NAME_SHARED)
$(TOOLS): | libkvc.so.$(VERSION)
.PHONY: $(TOOLS) libkvc.a libkvc.so.$(VERSION)

# kvc-profile make finds its program beside it
$B/kvc-profile: | $B/share
$B/share:
	@mkdir -p $(@D) && ln -sfn ../../share $@

.PHONY: kvc.pc
kvc.pc: # anew each time: PREFIX may have changed
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' 'Name: kvc' \
	  'Description: KV-cache container files' 'Version: $(VERSION)' 'Requires.private: $(DEPS)' \
	  'Libs: -L$${libdir} -lkvc' 'Libs.private: -lm -ldl -pthread' 'Cflags: -I$${includedir}' > $@

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TOOLS:%=$B/cli/%.d)

include formats/device/cuda/cuda.mk
include formats/store/store.mk
include packaging/packaging.mk
include tests/tests.mk

# --- installing ---

MAN1 := $(TOOLS:%=%.1)
# documents keep their folders: man pages and links name them so
DOCS := LICENSE README.md CHANGELOG.md BENCHMARKS.md SECURITY.md $(sort $(wildcard samples/*.md python/*.md)) \
  $(filter-out %/README.md,$(sort $(wildcard formats/*/*.md formats/*/*/*.md codecs/*.md codecs/*/*/*.md)))
# files, not folders: those have no dot in their names
SAMPLES := $(sort $(wildcard samples/*.* samples/*/*.*))
PROFILES := $(filter %.kvcp,$(SAMPLES))
# the program of kvc-profile make
MAKE_PROFILE := $(sort $(wildcard share/make_profile/*.py))
MAN3 := kvc.3 kvc_store.3
## man: writes the section OPTIONS of the man pages, from the tables of options of the tools
.PHONY: man
man: $(TOOLS:%=$B/%)
	$(Q)"$(PYTHON)" man/options.py $B $(TOOLS:%=man/%.1)

# completions: of bash, zsh and fish, from the option tables of the tools
$B/completions/done: share/completions.sh $(TOOLS:%=$B/%)
	$(SAY) GEN $(@D)
	$(Q)LD_LIBRARY_PATH="$(CURDIR)/$B$${LD_LIBRARY_PATH:+:$$LD_LIBRARY_PATH}" sh $< $B $(@D) && touch $@

## install: tools, libraries, backends, headers, pkg-config files, man pages, documents, samples, completions and MIME types below DESTDIR and PREFIX
.PHONY: install
install: all $B/completions/done
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR) $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(PKGCONFIGDIR)
	$(INSTALL) -d $(addprefix $(DESTDIR)$(MANDIR)/,man1 man3 man5 man7)
	$(INSTALL) -m 755 $(TOOLS) $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 644 libkvc.a $(DESTDIR)$(LIBDIR)
	$(INSTALL) -m 755 libkvc.so.$(VERSION) $(DESTDIR)$(LIBDIR)
	ln -sf libkvc.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libkvc.so.$(SOVERSION)
	ln -sf libkvc.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libkvc.so
	$(INSTALL) -m 644 $(addprefix formats/api/,kvc.h kvc_error.h kvc_inspect.h kvc_comparing.h) $(DESTDIR)$(INCLUDEDIR)
	$(INSTALL) -m 644 kvc.pc $(DESTDIR)$(PKGCONFIGDIR)
	$(INSTALL) -m 644 libkvc_store.a $(DESTDIR)$(LIBDIR)
	$(INSTALL) -m 755 libkvc_store.so.$(VERSION) $(DESTDIR)$(LIBDIR)
	ln -sf libkvc_store.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libkvc_store.so.$(SOVERSION)
	ln -sf libkvc_store.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libkvc_store.so
	$(INSTALL) -m 644 formats/api/kvc_store.h $(DESTDIR)$(INCLUDEDIR)
	$(INSTALL) -m 644 kvc_store.pc $(DESTDIR)$(PKGCONFIGDIR)
	$(INSTALL) -d $(DESTDIR)$(BACKENDSDIR)
	for b in $(BACKENDS_SO); do $(INSTALL) -m 755 $$b $(DESTDIR)$(BACKENDSDIR) || exit 1; done
ifneq ($(HAVE_CUDA),)
	$(INSTALL) -m 755 $(CUDA_SO) $(DESTDIR)$(LIBDIR)
	ln -sf $(CUDA_SO) $(DESTDIR)$(LIBDIR)/libkvc_cuda.so.$(SOVERSION)
	ln -sf libkvc_cuda.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libkvc_cuda.so
	$(INSTALL) -m 644 formats/api/kvc_cuda.h $(DESTDIR)$(INCLUDEDIR)
	$(INSTALL) -m 644 kvc_cuda.pc $(DESTDIR)$(PKGCONFIGDIR)
endif
	$(INSTALL) -m 644 $(MAN1:%=man/%) $(DESTDIR)$(MANDIR)/man1
	$(INSTALL) -m 644 $(MAN3:%=man/%) $(DESTDIR)$(MANDIR)/man3
	$(INSTALL) -m 644 man/kvc.5 man/kvc-profile.5 $(DESTDIR)$(MANDIR)/man5
	$(INSTALL) -m 644 $(wildcard man/*.7) $(DESTDIR)$(MANDIR)/man7
	for d in $(DOCS); do $(INSTALL) -D -m 644 $$d $(DESTDIR)$(DOCDIR)/$$d || exit 1; done
	for s in $(SAMPLES); do m=644; [ ! -x $$s ] || m=755; $(INSTALL) -D -m $$m $$s $(DESTDIR)$(DATADIR)/$$s || exit 1; done
	$(INSTALL) -d $(DESTDIR)$(DATADIR)/profiles
	for p in $(PROFILES); do ln -sf ../$$p $(DESTDIR)$(DATADIR)/profiles || exit 1; done
	$(INSTALL) -d $(DESTDIR)$(DATADIR)/make_profile
	$(INSTALL) -m 644 $(MAKE_PROFILE) $(DESTDIR)$(DATADIR)/make_profile
	$(INSTALL) -m 644 share/kvc.magic $(DESTDIR)$(DATADIR)
	$(INSTALL) -d $(addprefix $(DESTDIR),$(MIMEDIR) $(BASHDIR) $(ZSHDIR) $(FISHDIR))
	$(INSTALL) -m 644 share/kvc.xml $(DESTDIR)$(MIMEDIR)
	for f in $B/completions/bash/*; do [ ! -f $$f ] || $(INSTALL) -m 644 $$f $(DESTDIR)$(BASHDIR) || exit 1; done
	for f in $B/completions/zsh/*; do [ ! -f $$f ] || $(INSTALL) -m 644 $$f $(DESTDIR)$(ZSHDIR) || exit 1; done
	for f in $B/completions/fish/*; do [ ! -f $$f ] || $(INSTALL) -m 644 $$f $(DESTDIR)$(FISHDIR) || exit 1; done

## install-strip: install, and strip tools and shared libraries of their symbols
.PHONY: install-strip
install-strip: install
	$(STRIP) $(TOOLS:%=$(DESTDIR)$(BINDIR)/%)
	$(STRIP) --strip-unneeded $(DESTDIR)$(LIBDIR)/libkvc.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libkvc_store.so.$(VERSION) \
	  $(addprefix $(DESTDIR)$(BACKENDSDIR)/,$(BACKENDS_SO)) $(if $(HAVE_CUDA),$(DESTDIR)$(LIBDIR)/$(CUDA_SO))
	$(STRIP) --strip-debug $(DESTDIR)$(LIBDIR)/libkvc.a $(DESTDIR)$(LIBDIR)/libkvc_store.a

## uninstall: remove what install put there
.PHONY: uninstall
uninstall:
	rm -f $(TOOLS:%=$(DESTDIR)$(BINDIR)/%) $(DESTDIR)$(LIBDIR)/libkvc.a $(DESTDIR)$(LIBDIR)/libkvc.so
	rm -f $(DESTDIR)$(LIBDIR)/libkvc.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libkvc.so.$(VERSION)
	rm -f $(addprefix $(DESTDIR)$(INCLUDEDIR)/,kvc.h kvc_error.h kvc_inspect.h kvc_comparing.h) $(DESTDIR)$(PKGCONFIGDIR)/kvc.pc
	rm -f $(addprefix $(DESTDIR)$(LIBDIR)/libkvc_store,.a .so .so.$(SOVERSION) .so.$(VERSION))
	rm -f $(DESTDIR)$(INCLUDEDIR)/kvc_store.h $(DESTDIR)$(PKGCONFIGDIR)/kvc_store.pc $(BACKENDS:%=$(DESTDIR)$(BACKENDSDIR)/kvc_store_%.so)
	rm -f $(DESTDIR)$(LIBDIR)/libkvc_cuda.so $(DESTDIR)$(LIBDIR)/libkvc_cuda.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/$(CUDA_SO)
	rm -f $(DESTDIR)$(INCLUDEDIR)/kvc_cuda.h $(DESTDIR)$(PKGCONFIGDIR)/kvc_cuda.pc
	rm -f $(MAN1:%=$(DESTDIR)$(MANDIR)/man1/%) $(addprefix $(DESTDIR)$(MANDIR)/,$(MAN3:%=man3/%) man5/kvc.5 man5/kvc-profile.5 $(patsubst man/%,man7/%,$(wildcard man/*.7)))
	rm -f $(DOCS:%=$(DESTDIR)$(DOCDIR)/%) $(addprefix $(DESTDIR)$(DATADIR)/,kvc.magic $(SAMPLES) $(PROFILES:samples/%=profiles/%) $(MAKE_PROFILE:share/%=%))
	rm -f $(DESTDIR)$(MIMEDIR)/kvc.xml $(TOOLS:%=$(DESTDIR)$(BASHDIR)/%) $(TOOLS:%=$(DESTDIR)$(ZSHDIR)/_%) $(TOOLS:%=$(DESTDIR)$(FISHDIR)/%.fish)
	for d in $$(printf '%s\n' $(addprefix $(DOCDIR)/,$(sort $(dir $(DOCS)))) $(addprefix $(DATADIR)/,$(sort $(dir $(SAMPLES)))) | sort -r) \
	  $(addprefix $(DOCDIR)/,codecs/papers codecs/stages codecs formats) $(DOCDIR) $(addprefix $(DATADIR)/,profiles make_profile) $(DATADIR) $(BACKENDSDIR); do \
	  rmdir $(DESTDIR)$$d 2>/dev/null; done; true

## clean: remove everything that was built
.PHONY: clean
clean:
	rm -rf build $(TOOLS) libkvc.a libkvc.so.* kvc.pc libkvc_store.a libkvc_store.so.* kvc_store_*.so kvc_store.pc libkvc_cuda.so.* kvc_cuda.pc
