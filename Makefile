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
DATADIR ?= $(PREFIX)/share/kvc
DOCDIR ?= $(PREFIX)/share/doc/kvc
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

DEPS := libzstd libxxhash libcrypto libarchive jansson zlib
PKG_CFLAGS := $(shell $(PKG_CONFIG) --cflags $(DEPS) 2>/dev/null)
PKG_LIBS := $(shell $(PKG_CONFIG) --libs $(DEPS) 2>/dev/null)

comma := ,
# clang has no stricter form of it
CAST_ALIGN := -Wcast-align$(if $(findstring clang,$(shell $(CC) --version 2>/dev/null)),,=strict)
WARN := -Wall -Wextra -Wpedantic -Wconversion -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Wold-style-definition -Wundef \
  -Wvla -Wpointer-arith -Wredundant-decls -Wwrite-strings -Wformat=2 -Wcast-qual $(CAST_ALIGN) \
  -Wdouble-promotion $(if $(filter 1,$(WERROR)),-Werror)
override KVC_CFLAGS := -std=c11 $(WARN) -ffp-contract=off -fPIC -fvisibility=hidden -pthread
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

TOOLS := kvc-dump kvc-pack kvc-unpack kvc-diff
# libkvc_cuda alone has what is in a folder cuda/
LIB_SRC := $(sort $(wildcard $(addsuffix /*.c,kernels kernels/device codecs codecs/stages formats/*)))
CLI_SRC := $(filter-out $(TOOLS:%=cli/%.c),$(sort $(wildcard cli/*.c cli/*/*.c)))
CUDA_SRC := $(sort $(wildcard formats/*/cuda/*.c))
LIB_OBJ := $(LIB_SRC:%.c=$B/%.o)
CLI_OBJ := $(CLI_SRC:%.c=$B/%.o)
UNIT_SRC := $(sort $(wildcard tests/unit/*.c))
UNIT_BIN := $(UNIT_SRC:%.c=$B/%)
FUZZ_SRC := $(sort $(wildcard tests/fuzz/fuzz_*.c))
FUZZ_NAMES := $(FUZZ_SRC:tests/fuzz/%.c=%)
BENCH_OBJ := $(patsubst %.c,$B/%.o,$(wildcard tests/bench/*.c))

ifeq ($(filter auto 0 1,$(CUDA)),)
$(error CUDA=$(CUDA): it is auto, 0 or 1)
endif
ifneq ($(CUDA),0)
NVCC ?= $(shell PATH="$$PATH:$(CUDA_HOME)/bin:/usr/local/cuda/bin"; command -v nvcc)
endif
ifeq ($(CUDA)$(NVCC),1)
$(error CUDA=1: no nvcc in PATH, $(CUDA_HOME)/bin or /usr/local/cuda/bin; use CUDA=auto or CUDA=0)
endif
HAVE_CUDA := $(if $(filter-out 0,$(CUDA)),$(NVCC))
CUDA_SO := libkvc_cuda.so.$(VERSION)

## all: the four tools and the library, and libkvc_cuda where there is nvcc
.PHONY: all
all: $(TOOLS) libkvc.a libkvc.so.$(VERSION) kvc.pc cuda

## help: this list
.PHONY: help
help:
	@sed -n 's/^## //p' $(firstword $(MAKEFILE_LIST)) | sed 's/^\([a-z-]*\): /\1 /' | while read -r t d; do printf '  %-17s %s\n' "$$t" "$$d"; done
	@echo "Variables: CC CFLAGS CPPFLAGS LDFLAGS LDLIBS PREFIX DESTDIR BINDIR LIBDIR MANDIR DATADIR DOCDIR CUDA=auto|0|1 CUDA_HOME CUDA_ARCHS NVCCFLAGS WERROR=1 HARDEN=1 V=1"

# links a program, or with -shared a library
LINK = $(Q)$(CC) $(KVC_CFLAGS) $(CFLAGS) $(HARD_LINK) $(LDFLAGS) -o $@
LIBS = $(KVC_LDLIBS) $(LDLIBS)

# Before anything is compiled: does kvc support the machine that CC, if there is one, compiles for? Are the packages there?
$B/ready: kernels/target.h
	@! command -v $(firstword $(CC)) >/dev/null || $(CC) $(CPPFLAGS) $(CFLAGS) -E -x c $< >/dev/null
	@sh tests/deps.sh check build
	@mkdir -p $(@D) && touch $@

$B/%.o: %.c | $B/ready
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) $(KVC_CPPFLAGS) $(CPPFLAGS) $(KVC_CFLAGS) $(if $(filter tests/%,$<),-Wno-double-promotion) \
	  $(CFLAGS) $(ISA) -MMD -MP -c -o $@ $<

# The compiler knows the machine it compiles for. It is asked once, and only when a kernel is compiled.
X86_64 = $(shell $(CC) $(CPPFLAGS) $(CFLAGS) -dM -E -x c /dev/null | grep -w __x86_64__)
AVX2 = $(eval AVX2 := $(if $(X86_64),-mavx2 -mf16c -mfma))$(AVX2)
AVX512 = $(if $(AVX2),-mavx512f -mavx512bw -mavx512vl -mavx512dq)
$B/kernels/%_avx2.o: ISA = $(AVX2)
$B/kernels/%_avx512.o: ISA = $(AVX512)

$B/libkvc.a: $(LIB_OBJ)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# what a shared library exports: the functions that its header declares, as symbols of the version KVC_0
$B/%.map: formats/api/%.h
	@mkdir -p $(@D)
	$(Q){ echo 'KVC_0 { global:'; sed -n 's/^KVC_[A-Z_]*API [^(]*[ *]\(kvc_[a-z0-9_]*\)(.*/  \1;/p' $<; echo 'local: *; };'; } >$@

$B/libkvc.so.$(VERSION): $(LIB_OBJ) $B/kvc.map
	$(SAY) LD $@
	$(LINK) -shared -Wl,-soname,libkvc.so.$(SOVERSION) -Wl,-z,defs -Wl,--version-script=$B/kvc.map $(LIB_OBJ) $(LIBS)

# what the tools share; an archive, so that each takes only what it uses
$B/libcli.a: $(CLI_OBJ)
	$(SAY) AR $@
	$(Q)rm -f $@ && $(AR) rcs $@ $^

$B/%: $B/cli/%.o $B/libcli.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $(PIE) $< $B/libcli.a $B/libkvc.a $(LIBS)

$(TOOLS) libkvc.a libkvc.so.$(VERSION): %: $B/%
	$(Q)cp -f $< $@
.PHONY: $(TOOLS) libkvc.a libkvc.so.$(VERSION)

.PHONY: kvc.pc
kvc.pc: # anew each time: PREFIX may have changed
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' 'Name: kvc' \
	  'Description: KV-cache container files' 'Version: $(VERSION)' 'Requires.private: $(DEPS)' \
	  'Libs: -L$${libdir} -lkvc' 'Libs.private: -lm -ldl -pthread' 'Cflags: -I$${includedir}' > $@

$B/tests/unit/%: $B/tests/unit/%.o $B/libcli.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $(WRAP) $< $B/libcli.a $B/libkvc.a -lcmocka $(LIBS)

# its allocations fail when it says so
$B/tests/unit/test_alloc: WRAP := $(patsubst %,-Wl$(comma)--wrap=%,malloc calloc realloc strdup)

-include $(LIB_OBJ:.o=.d) $(CLI_OBJ:.o=.d) $(TOOLS:%=$B/cli/%.d) $(UNIT_BIN:%=%.d) $(FUZZ_SRC:%.c=$B/%.d)
-include $B/tests/fuzz/replay.d $(BENCH_OBJ:.o=.d) $B/tests/golden/golden.d $B/tests/cuda/fake.d $B/formats/api/cuda/kvc_cuda.d

# --- libkvc_cuda ---

# the same over the host in a GPU's place, for tests
FAKE_CUDA := $B/tests/cuda/libkvc_cuda_fake.so
$(FAKE_CUDA): $B/tests/cuda/fake.o $B/formats/api/cuda/kvc_cuda.o $B/libkvc.a
	$(SAY) LD $@
	$(LINK) -shared -Wl,--exclude-libs,ALL $^ $(LIBS)
-include $B/tests/cuda/fake.d

# the GPU's tests; over the host too, so that they stay sound where there is no GPU
CUDA_TEST := $B/tests/cuda/test_cuda.o $B/tests/cuda/made.o
FAKE_TEST := $B/tests/cuda/test_cuda_fake
$(FAKE_TEST): $(CUDA_TEST) $B/tests/cuda/fake.o $B/formats/api/cuda/kvc_cuda.o $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)
-include $(CUDA_TEST:.o=.d)

ifneq ($(HAVE_CUDA),)
# of the targets, those that this nvcc knows, and PTX of the last for what comes after it
CUDA_KNOWN := $(filter $(patsubst sm_%,%,$(shell $(NVCC) --list-gpu-code)),$(CUDA_ARCHS))
CUDA_PTX := $(lastword $(CUDA_KNOWN))
CUDA_RELEASE := $(shell $(NVCC) --version | sed -n 's/.*release \([0-9.]*\),.*/\1/p')
CUDA_BUILD := $(CUDA_KNOWN:%=sm_%) PTX compute_$(CUDA_PTX), CUDA $(CUDA_RELEASE)
# where its headers and libraries are, it knows best
CUDA_PATHS := $(shell $(NVCC) --dryrun -c kernels/device/decode.cu 2>&1 | sed -n 's/^.. \(INCLUDES\|LIBRARIES\)=//p' | tr -d '"')
# C++ without its run-time library: no exceptions, no guards of statics
NVCC_ALL := $(NVCC) -std=c++17 -O3 -fmad=false -ftz=false -prec-div=true -prec-sqrt=true -Xptxas -v \
  --threads 0 -Xcompiler -Wall,-Wextra,-fPIC,-fvisibility=hidden,-fno-exceptions,-fno-threadsafe-statics -I. \
  $(foreach a,$(CUDA_KNOWN),-gencode arch=compute_$a,code=sm_$a) -gencode arch=compute_$(CUDA_PTX),code=compute_$(CUDA_PTX) \
  $(NVCCFLAGS) '-DKVC_CUDA_BUILD="$(CUDA_BUILD)"'
# the kernel takes long and does not depend on CFLAGS: it has a folder of its own
C := build/cuda-$(shell printf '%s' "$(subst ",,$(NVCC_ALL))" | cksum | cut -d' ' -f1)
CUDA_OBJ := $(CUDA_SRC:%.c=$B/%.o)

# what nvcc and ptxas say of warnings, registers and spills stays beside the object, for check-cuda
$C/kernels/device/decode.o: kernels/device/decode.cu | $B/ready
	@mkdir -p $(@D)
	$(SAY) NVCC $<
	$(Q)$(NVCC_ALL) -MMD -MP -o $@ -c $< 2>$(@:.o=.log) || { cat $(@:.o=.log) >&2; exit 1; }

$(CUDA_OBJ): ISA := $(patsubst -I%,-isystem %,$(filter -I%,$(CUDA_PATHS)))

# self-contained: libkvc and CUDA's runtime are inside and not to be seen from outside
$B/$(notdir $C)/$(CUDA_SO): $(CUDA_OBJ) $C/kernels/device/decode.o $B/libkvc.a $B/kvc_cuda.map
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(LINK) -shared -Wl,-soname,libkvc_cuda.so.$(SOVERSION) -Wl,-z,defs -Wl,--exclude-libs,ALL \
	  -Wl,--version-script=$B/kvc_cuda.map $(filter-out %.map,$^) $(filter -L%,$(CUDA_PATHS)) -lcudart_static -lrt $(LIBS)

# tests and benchmarks on a GPU
$B/tests/cuda/bench_cuda.o: ISA := $(patsubst -I%,-isystem %,$(filter -I%,$(CUDA_PATHS)))
$B/$(notdir $C)/%_cuda: $B/tests/cuda/%_cuda.o $B/tests/cuda/made.o $(CUDA_OBJ) $C/kernels/device/decode.o $B/libkvc.a
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(LINK) $^ $(filter -L%,$(CUDA_PATHS)) -lcudart_static -lrt $(LIBS)

-include $(CUDA_OBJ:.o=.d) $C/kernels/device/decode.d $B/tests/cuda/bench_cuda.d

.PHONY: cuda $(CUDA_SO)
cuda: $(CUDA_SO) kvc_cuda.pc
$(CUDA_SO): $B/$(notdir $C)/$(CUDA_SO)
	$(Q)cp -f $< $@
else
.PHONY: cuda
cuda:
	$(if $(filter auto,$(CUDA)),@echo "no nvcc: libkvc_cuda is not built")
endif

.PHONY: kvc_cuda.pc
kvc_cuda.pc:
	$(Q)printf '%s\n' 'prefix=$(PREFIX)' 'libdir=$(LIBDIR)' 'includedir=$(INCLUDEDIR)' '' 'Name: kvc_cuda' \
	  'Description: KV-cache container files into GPU memory' 'Version: $(VERSION)' 'Requires: kvc' \
	  'Libs: -L$${libdir} -lkvc_cuda' 'Cflags: -I$${includedir}' > $@

# AVX-512's rANS on any x86-64: emulated.c takes the place of the library's kernels and of the choice among them.
# SIMDe adds and multiplies signed integers that overflow.
$B/tests/simde/%.o: ISA := -isystem tests/simde -Wno-psabi -fno-sanitize=signed-integer-overflow
$B/tests/simde/emulated.o: tests/simde/immintrin.h
$B/tests/simde/test_rans: $B/tests/unit/test_rans.o $B/tests/simde/emulated.o $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ -lcmocka $(LIBS)
-include $B/tests/simde/emulated.d

# --- proofs ---

## demo: install missing packages (as root; KVC_INSTALL=no: do not), build, pack, inspect, unpack and compare a real sample
.PHONY: demo
demo:
	@sh tests/deps.sh install build
	@$(MAKE) --no-print-directory all
	@sh tests/demo.sh

## check: the quick tests: unit tests, layers, symbols
.PHONY: check
check: all $(UNIT_BIN) check-layers check-symbols
	@sh tests/run.sh unit $B

## test: install missing packages as demo does, then everything: unit, CLI, golden, fixtures, fuzz replay, layers, symbols, install, man pages
.PHONY: test
test:
	@sh tests/deps.sh install test
	@$(MAKE) --no-print-directory test-all

.PHONY: test-all
test-all: all $(FAKE_CUDA) $(FAKE_TEST) $(UNIT_BIN) $(FUZZ_NAMES:%=$B/replay/%) $B/tests/golden/golden
	@sh tests/run.sh all $B

ENGINE_TESTS ?=
## test-engine: the tools with a real llama.cpp and transformers, from PyPI; ENGINE_TESTS: parts of the tests' names
.PHONY: test-engine
test-engine: all $(FAKE_CUDA)
	@sh tests/engine/run.sh $B $(ENGINE_TESTS)

## golden: compare decoders with the stored files and digests of tests/golden
.PHONY: golden
golden: $B/tests/golden/golden
	@$< tests/golden

## golden-update: write the stored files and digests anew
.PHONY: golden-update
golden-update: $B/tests/golden/golden
	@$< --update tests/golden

BENCH_FILES ?= $(or $(wildcard build/bench/*.safetensors build/bench/*.bin),\
  $(wildcard samples/slot-*.bin samples/transformers-*.safetensors))
BENCH ?=
BENCH_FOLDER := build/bench
## bench-files: real caches for BENCH_FILES into build/bench, made by a model and an engine from PyPI
.PHONY: bench-files
bench-files:
	@PYTHON="$(PYTHON)" sh tests/bench/make_files.sh $(BENCH_FOLDER)

## bench: rates of kernels, stages and BENCH_FILES beside memcpy, zstd and ZipNN, and ratios; BENCH="--help": its tables
.PHONY: bench
bench: all $B/tests/bench/bench
	@PYTHON="$(PYTHON)" $B/tests/bench/bench $(BENCH) $(BENCH_FILES)

## bench-smoke: every table of bench, of one run each: shows that they are printed, not how fast anything is
.PHONY: bench-smoke
bench-smoke: $B/tests/bench/bench
	@PYTHON="$(PYTHON)" sh tests/bench/smoke.sh $B/tests/bench/bench samples/slot-f16.bin samples/transformers-16.safetensors

## bench-memory: the most memory that packing and unpacking take; makes caches of up to 2 GB in TMPDIR
.PHONY: bench-memory
bench-memory: all
	@"$(PYTHON)" tests/bench/memory.py .

## bench-sizes: sizes of the lossy presets beside those that the papers publish
.PHONY: bench-sizes
bench-sizes: all
	@here=$$(pwd) && scratch=$$(mktemp -d) && trap 'rm -rf "$$scratch"' EXIT && cd "$$scratch" && \
	  PATH="$$here:$$PATH" "$(PYTHON)" "$$here/tests/cli/lossy-accounting/accounting.py"

QUALITY_FILE ?=
QUALITY_RECIPES ?= split kivi4 gear4 gear-l4 kcvt4 kivi2 gear gear-l zipcache think think-kivi minicache minicache-kivi4
## quality: what the real model makes of caches decoded from QUALITY_RECIPES: samples, or QUALITY_FILE
.PHONY: quality
quality: all
	@PYTHON="$(PYTHON)" sh tests/quality/run.sh . "$(QUALITY_RECIPES)" $(QUALITY_FILE)

QUALITY_MODEL ?= smollm2
QUALITY_N ?= 2048
QUALITY_TEXTS ?= gpl3 code german table chat
QUALITY_PROFILE ?=
QUALITY_ROWS ?=
## quality-table: ratios of the transform codec at equal KLD beside its peers' and its targets, for QUALITY_TEXTS
.PHONY: quality-table
quality-table: all
	@PYTHON="$(PYTHON)" sh tests/quality/table.sh . --model=$(QUALITY_MODEL) -n $(QUALITY_N) \
	  --texts="$(QUALITY_TEXTS)" $(if $(QUALITY_ROWS),--rows="$(QUALITY_ROWS)") $(QUALITY_PROFILE:%=--profile=%)

## fuzz: run every libFuzzer target for FUZZ_SECONDS each (clang)
.PHONY: fuzz
fuzz: $(FUZZ_NAMES:%=$B/fuzz/%)
	@for t in $(FUZZ_NAMES); do mkdir -p build/fuzz-corpus/$$t; \
	  $B/fuzz/$$t -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=20 \
	  build/fuzz-corpus/$$t tests/fuzz/corpus/$${t#fuzz_} || exit 1; done

## fuzz-replay: run the fuzz targets over the kept corpus, without libFuzzer
.PHONY: fuzz-replay
fuzz-replay: $(FUZZ_NAMES:%=$B/replay/%)
	@for t in $(FUZZ_NAMES); do $B/replay/$$t tests/fuzz/corpus/$${t#fuzz_} || exit 1; done

$B/replay/%: $B/tests/fuzz/%.o $B/tests/fuzz/replay.o $B/libkvc.a
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

# libFuzzer needs its instrumentation in the library too: all sources at once, with clang
$B/fuzz/%: tests/fuzz/%.c $(filter-out %_avx512.c,$(LIB_SRC)) | $B/ready
	@mkdir -p $(@D)
	$(SAY) FUZZ $@
	$(Q)$(FUZZ_CC) $(KVC_CPPFLAGS) -DKVC_NO_AVX512 -std=c11 -g -O1 -ffp-contract=off $(AVX2) \
	  -fsanitize=fuzzer,address,undefined -fno-sanitize-recover=undefined -o $@ $^ $(KVC_LDLIBS)

$B/tests/golden/golden: $B/tests/golden/golden.o $B/libcli.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

$B/tests/bench/bench.o: ISA := '-DBENCH_CFLAGS="$(subst ",,$(CFLAGS))"'
$B/tests/bench/bench: $(BENCH_OBJ) $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

SAN_UNDEFINED := -fsanitize=undefined -fno-sanitize-recover=undefined
## asan: all tests under the address and undefined-behaviour sanitizers
.PHONY: asan
asan:
	@ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 $(MAKE) --no-print-directory test-san CUDA=0 \
	  CFLAGS="-O1 -g -fno-omit-frame-pointer -fsanitize=address $(SAN_UNDEFINED)" LDFLAGS="-fsanitize=address $(SAN_UNDEFINED)"

## ubsan: all tests under the undefined-behaviour sanitizer alone
.PHONY: ubsan
ubsan:
	@$(MAKE) --no-print-directory test-san CUDA=0 CFLAGS="-O1 -g $(SAN_UNDEFINED)" LDFLAGS="$(SAN_UNDEFINED)"

## tsan: unit tests and threaded tools under the thread sanitizer
.PHONY: tsan
tsan:
	@$(MAKE) --no-print-directory test-san CUDA=0 CFLAGS="-O1 -g -fsanitize=thread" LDFLAGS="-fsanitize=thread"

.PHONY: test-san
test-san: $(FAKE_CUDA) $(TOOLS:%=$B/%) $(UNIT_BIN) $(FUZZ_NAMES:%=$B/replay/%) $B/tests/golden/golden
	@sh tests/run.sh san $B

## check-layers: rooms use each other one way, by includes and by symbols; no cycles, unique names, no long files
.PHONY: check-layers
check-layers: $(TOOLS:%=$B/%)
	@"$(PYTHON)" tests/check-layers.py $B

## check-layers-test: check-layers reports every fault that is put into a copy of the tree
.PHONY: check-layers-test
check-layers-test:
	@CC="$(CC)" "$(PYTHON)" tests/check-layers-test.py

## check-words: comments and documents keep CONTRIBUTING.md's list of words
.PHONY: check-words
check-words:
	@sh tests/check-words.sh

## analyze: clang-tidy, gcc -fanalyzer and shellcheck, those that are installed; ANALYZE=all: checks with false findings too
.PHONY: analyze
analyze:
	@ANALYZE="$(ANALYZE)" sh tests/analyze.sh $(filter-out -W%,$(KVC_CPPFLAGS) $(CPPFLAGS) $(KVC_CFLAGS)) $(AVX2)

CLANG_FORMAT ?=
## format: format the C code by .clang-format
.PHONY: format
format:
	@CLANG_FORMAT="$(CLANG_FORMAT)" PYTHON="$(PYTHON)" sh tests/check-format.sh --apply

## check-format: the C code is as clang-format would write it; CLANG_FORMAT: which
.PHONY: check-format
check-format:
	@CLANG_FORMAT="$(CLANG_FORMAT)" PYTHON="$(PYTHON)" sh tests/check-format.sh

## check-symbols: the libraries define kvc_ symbols only, the shared ones export what their headers declare
.PHONY: check-symbols
check-symbols: libkvc.a libkvc.so.$(VERSION) $(if $(HAVE_CUDA),$(CUDA_SO))
	@sh tests/check-symbols.sh libkvc.a libkvc.so.$(VERSION) formats/api/kvc.h $(if $(HAVE_CUDA),$(CUDA_SO) formats/api/kvc_cuda.h)

## check-abi: libkvc.so against that of the last tag, by abidiff; ABI_BASE: another commit
.PHONY: check-abi
check-abi: libkvc.so.$(VERSION)
	@sh tests/check-abi.sh $(MAKE) libkvc.so.$(VERSION)

## check-cuda: nvcc compiles the kernel for all targets without a warning, and no register of it is spilt
.PHONY: check-cuda
check-cuda: $(if $(HAVE_CUDA),$(CUDA_SO))
	@sh tests/check-cuda.sh "$(HAVE_CUDA)" $(if $(HAVE_CUDA),$C/kernels/device/decode.log $(CUDA_SO)) $(CUDA_ARCHS)

## test-cuda: libkvc_cuda on a real GPU: every file, preset and layout, a cache of more than 4 GiB, NVIDIA's sanitizer
.PHONY: test-cuda
test-cuda: $(if $(HAVE_CUDA),$B/$(notdir $C)/test_cuda)
	@sh tests/cuda/test.sh "$(HAVE_CUDA)" $(if $(HAVE_CUDA),$<)

BENCH_CUDA ?=
## bench-cuda: rates on a real GPU, against copies of the same bytes; BENCH_CUDA="--quick", "--help": how
.PHONY: bench-cuda
bench-cuda: all $(if $(HAVE_CUDA),$B/$(notdir $C)/bench_cuda)
	@PYTHON="$(PYTHON)" sh tests/cuda/bench.sh "$(HAVE_CUDA)" $(if $(HAVE_CUDA),$B/$(notdir $C)/bench_cuda) $(BENCH_CUDA)

## check-install: install into an empty place, build against it, uninstall, nothing stays
.PHONY: check-install
check-install: all
	@sh tests/check-install.sh $(MAKE)

## check-vars: CC, CFLAGS, CPPFLAGS, LDFLAGS and LDLIBS from outside reach the commands
.PHONY: check-vars
check-vars:
	@sh tests/check-vars.sh $(MAKE)

## check-target: machines that kvc does not support are refused; vector flags follow the compiler's machine
.PHONY: check-target
check-target:
	@sh tests/check-target.sh $(MAKE)

## check-deps: missing packages are named, and installed only where that was asked for or announced
.PHONY: check-deps
check-deps:
	@sh tests/check-deps.sh $(MAKE)

## check-simde: AVX-512's rANS, emulated where SIMDe's headers are installed
.PHONY: check-simde
check-simde:
	@if printf '%s\n' '#ifndef __x86_64__' '#error' '#endif' '#include <simde/x86/avx512.h>' | \
	  $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1; \
	then $(MAKE) --no-print-directory $B/tests/simde/test_rans && $B/tests/simde/test_rans; \
	else echo "SKIPPED: AVX-512's rANS is not tested: no <simde/x86/avx512.h> (libsimde-dev), or this is no x86-64"; \
	  echo "0 passed, 0 failed, 1 skipped"; fi

## man-lint: mandoc finds nothing wrong in the man pages
.PHONY: man-lint
man-lint:
	@if command -v mandoc >/dev/null; then mandoc -T lint -W warning man/*.[1-9] && echo "man pages: ok"; \
	else echo "man-lint: mandoc is not installed" >&2; exit 1; fi

# --- installing ---

MAN1 := $(TOOLS:%=%.1)
# documents keep their folders: man pages name them so
DOCS := $(filter-out %/README.md,$(sort $(wildcard formats/*/*.md codecs/*.md codecs/stages/*.md)))
PROFILES := $(sort $(wildcard samples/*.kvcp))
## install: tools, libraries, headers, pkg-config files, man pages, documents and profiles below DESTDIR and PREFIX
.PHONY: install
install: all
	$(INSTALL) -d $(DESTDIR)$(BINDIR) $(DESTDIR)$(LIBDIR) $(DESTDIR)$(INCLUDEDIR) $(DESTDIR)$(PKGCONFIGDIR)
	$(INSTALL) -d $(DESTDIR)$(MANDIR)/man1 $(DESTDIR)$(MANDIR)/man5 $(DESTDIR)$(MANDIR)/man7
	$(INSTALL) -m 755 $(TOOLS) $(DESTDIR)$(BINDIR)
	$(INSTALL) -m 644 libkvc.a $(DESTDIR)$(LIBDIR)
	$(INSTALL) -m 755 libkvc.so.$(VERSION) $(DESTDIR)$(LIBDIR)
	ln -sf libkvc.so.$(VERSION) $(DESTDIR)$(LIBDIR)/libkvc.so.$(SOVERSION)
	ln -sf libkvc.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libkvc.so
	$(INSTALL) -m 644 formats/api/kvc.h $(DESTDIR)$(INCLUDEDIR)
	$(INSTALL) -m 644 kvc.pc $(DESTDIR)$(PKGCONFIGDIR)
ifneq ($(HAVE_CUDA),)
	$(INSTALL) -m 755 $(CUDA_SO) $(DESTDIR)$(LIBDIR)
	ln -sf $(CUDA_SO) $(DESTDIR)$(LIBDIR)/libkvc_cuda.so.$(SOVERSION)
	ln -sf libkvc_cuda.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libkvc_cuda.so
	$(INSTALL) -m 644 formats/api/kvc_cuda.h $(DESTDIR)$(INCLUDEDIR)
	$(INSTALL) -m 644 kvc_cuda.pc $(DESTDIR)$(PKGCONFIGDIR)
endif
	$(INSTALL) -m 644 $(MAN1:%=man/%) $(DESTDIR)$(MANDIR)/man1
	$(INSTALL) -m 644 man/kvc.5 man/kvc-profile.5 $(DESTDIR)$(MANDIR)/man5
	$(INSTALL) -m 644 man/kvc-recipes.7 $(DESTDIR)$(MANDIR)/man7
	$(INSTALL) -d $(DESTDIR)$(DATADIR)/profiles
	for d in $(DOCS); do $(INSTALL) -d $(DESTDIR)$(DOCDIR)/$${d%/*} && $(INSTALL) -m 644 $$d $(DESTDIR)$(DOCDIR)/$$d || exit 1; done
	$(INSTALL) -m 755 samples/python/make_profile.py $(DESTDIR)$(DATADIR)
	$(INSTALL) -m 644 $(PROFILES) $(DESTDIR)$(DATADIR)/profiles

## install-strip: install, and strip tools and shared libraries of their symbols
.PHONY: install-strip
install-strip: install
	$(STRIP) $(TOOLS:%=$(DESTDIR)$(BINDIR)/%)
	$(STRIP) --strip-unneeded $(DESTDIR)$(LIBDIR)/libkvc.so.$(VERSION) $(if $(HAVE_CUDA),$(DESTDIR)$(LIBDIR)/$(CUDA_SO))
	$(STRIP) --strip-debug $(DESTDIR)$(LIBDIR)/libkvc.a

## uninstall: remove what install put there
.PHONY: uninstall
uninstall:
	rm -f $(TOOLS:%=$(DESTDIR)$(BINDIR)/%) $(DESTDIR)$(LIBDIR)/libkvc.a $(DESTDIR)$(LIBDIR)/libkvc.so
	rm -f $(DESTDIR)$(LIBDIR)/libkvc.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/libkvc.so.$(VERSION)
	rm -f $(DESTDIR)$(INCLUDEDIR)/kvc.h $(DESTDIR)$(PKGCONFIGDIR)/kvc.pc
	rm -f $(DESTDIR)$(LIBDIR)/libkvc_cuda.so $(DESTDIR)$(LIBDIR)/libkvc_cuda.so.$(SOVERSION) $(DESTDIR)$(LIBDIR)/$(CUDA_SO)
	rm -f $(DESTDIR)$(INCLUDEDIR)/kvc_cuda.h $(DESTDIR)$(PKGCONFIGDIR)/kvc_cuda.pc
	rm -f $(MAN1:%=$(DESTDIR)$(MANDIR)/man1/%) $(DESTDIR)$(MANDIR)/man5/kvc.5 $(DESTDIR)$(MANDIR)/man5/kvc-profile.5 $(DESTDIR)$(MANDIR)/man7/kvc-recipes.7
	rm -f $(DOCS:%=$(DESTDIR)$(DOCDIR)/%) $(DESTDIR)$(DATADIR)/make_profile.py
	rm -f $(PROFILES:samples/%=$(DESTDIR)$(DATADIR)/profiles/%)
	for d in $(addprefix $(DOCDIR)/,$(sort $(dir $(DOCS))) codecs formats) $(DOCDIR) $(DATADIR)/profiles $(DATADIR); do \
	  rmdir $(DESTDIR)$$d 2>/dev/null; done; true

## clean: remove everything that was built
.PHONY: clean
clean:
	rm -rf build $(TOOLS) libkvc.a libkvc.so.* kvc.pc libkvc_cuda.so.* kvc_cuda.pc
