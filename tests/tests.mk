# tests.mk: tests, checks, benchmarks and fuzzing. Included by the top folder's Makefile.

UNIT_SRC := $(filter-out $(NOT_BUILT),$(sort $(wildcard tests/unit/*.c)))
UNIT_BIN := $(UNIT_SRC:%.c=$B/%)
FUZZ_SRC := $(filter-out $(NOT_BUILT),$(sort $(wildcard tests/fuzz/fuzz_*.c)))
FUZZ_NAMES := $(FUZZ_SRC:tests/fuzz/%.c=%)
# what libkvc_cuda is made of beside CUDA
CUDA_API := $(patsubst %.c,$B/%.o,$(wildcard formats/api/cuda/*.c))
FAKE_CUDA := $B/tests/cuda/libkvc_cuda_fake.so
BENCH_OBJ := $(patsubst %.c,$B/%.o,$(wildcard tests/bench/*.c))

$B/tests/unit/%: $B/tests/unit/%.o $B/libcli.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $(WRAP) $< $B/libcli.a $B/libkvc.a -lcmocka $(LIBS)

# the three libraries as a program links them, with the host in a GPU's place
$B/tests/unit/test_libraries $B/tests/unit/test_arguments: %: %.o $(FAKE_CUDA) $B/$(STORE_SO) $B/libkvc.so.$(VERSION)
	$(SAY) LD $@
	$(LINK) $^ '-Wl,-rpath,$$ORIGIN/../..:$$ORIGIN/../cuda' -lcmocka $(LIBS)

# libkvc as a reader of the conformance set
CONFORMANCE := $B/tests/conformance/reader

# it makes zips by libarchive itself, which the library only loads
$B/tests/unit/test_npz: override KVC_LDLIBS += -larchive

# drives the backends of the store, which are loaded on demand
$B/tests/store/tier_driver: $B/tests/store/tier_driver.o $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

# the store's tests
$B/tests/unit/test_store_%: $B/tests/unit/test_store_%.o $B/libcli.a $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $(WRAP) $< $B/libcli.a $B/libkvc_store.a $B/libkvc.a -lcmocka $(STORE_LIBS) $(LIBS)

# The test has calls of its own in the place of these; `large` for the names that have 64 in glibc alone (tests/large_files.h).
wrap = $(1:%=-Wl,--wrap=%)
large = $(foreach name,$1,$(name) $(name)64)

# files change between its reads; it counts what memory is new
$B/tests/unit/test_store_reading: WRAP := $(call wrap,$(call large,pread) madvise)

# the disk is full, and the clock wrong, when it says so
$B/tests/unit/test_store_disk: WRAP := $(call wrap,time write $(call large,fstatat fstatvfs))

# its folders cannot be made durable when it says so
$B/tests/unit/test_output: WRAP := -Wl,--wrap=fsync

# attacks on a store; their number is an argument
ATTACKS := $(patsubst %.c,$B/%,$(wildcard tests/store/attack_*.c))
$B/tests/store/attack_%: $B/tests/store/attack_%.o $B/libkvc_store.a $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $(WRAP) $< $B/libkvc_store.a $B/libkvc.a $(STORE_LIBS) $(LIBS)

# its calls fail when it says so
$B/tests/store/attack_faults: WRAP := $(call wrap,malloc calloc realloc strdup write fdatasync fsync flock linkat syscall renameat mkdir \
  mkdirat unlinkat fdopendir sqlite3_vfs_register sqlite3_prepare_v2 sqlite3_prepare_v3 sqlite3_exec sqlite3_step sqlite3_file_control \
  $(call large,open openat pread pwrite ftruncate fcntl stat fstat fstatat fstatvfs))

# its allocations fail when it says so
$B/tests/unit/test_alloc $B/tests/unit/test_store_learn: WRAP := $(call wrap,malloc calloc realloc strdup)

# its LAPACK finds less when it says so
$B/tests/unit/test_eigen: WRAP := $(call wrap,dlsym)

# libkvc_cuda over the host in a GPU's place
$(FAKE_CUDA): $B/tests/cuda/fake.o $(CUDA_API) $B/libkvc.so.$(VERSION)
	$(SAY) LD $@
	$(LINK_OWN) -Wl,-soname,$(@F) $^ '-Wl,-rpath,$$ORIGIN/../..' $(LIBS)

# the GPU's tests; over the host too, so that they stay sound where there is no GPU
CUDA_TEST := $B/tests/cuda/test_cuda.o $B/tests/cuda/made.o
FAKE_TEST := $B/tests/cuda/test_cuda_fake
# In the place of the library's. It runs where it is compiled; fmaf() as a call is seven eighths of the time.
$B/tests/cuda/decode_host.o: ISA = $(shell grep -qsw fma /proc/cpuinfo && echo -mfma)
$B/tests/cuda/decode_host.o: kernels/device/decode_host.c | $B/ready
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(COMPILE) $<
$(FAKE_TEST): $(CUDA_TEST) $B/tests/cuda/fake.o $B/tests/cuda/decode_host.o $(CUDA_API) $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

# decode.cu and encode.cu, the code for GPUs, over warps on the host (tests/simt/simt.h), in the place of the library's decode_host.o
# and encode_host.o; misaligned
# addresses end the program. The C compiler knows CUDA's names by decode_simt.h; it does not know that a lane's number is below 32.
# tests/cuda/fake.c has kvc_device_build.
SIMT_OBJ := $(addprefix $B/tests/simt/,simt.o decode_simt.o decode.o encode.o)
SIMT_TESTS := $(addprefix $B/tests/simt/,test_simt test_load test_device_pack make_inputs)
SIMT_UNDEFINED := -fsanitize=undefined -fno-sanitize-recover=undefined
$B/tests/simt/decode.o $B/tests/simt/encode.o: $B/tests/simt/%.o: kernels/device/%.cu | $B/ready
	@mkdir -p $(@D)
	$(SAY) CC $<
	$(Q)$(CC) -x c++ -std=c++17 -include tests/simt/decode_simt.h -isystem tests/simt -D__CUDACC__ '-DKVC_CUDA_BUILD=""' -Dkvc_device_build=simt_build \
	  $(KVC_CPPFLAGS) $(CPPFLAGS) -Wall $(if $(filter 1,$(WERROR)),-Werror) -Wno-unknown-pragmas -Wno-maybe-uninitialized \
	  -ffp-contract=off -fno-exceptions -fno-threadsafe-statics -fPIC -pthread $(CFLAGS) $(SIMT_UNDEFINED) -MMD -MP -c -o $@ $<
# sees the memory of all lanes, tells ThreadSanitizer what orders them, and jumps from stack to stack
$B/tests/simt/simt.o: ISA := -fno-sanitize=thread -U_FORTIFY_SOURCE
$B/tests/simt/test_simt: $B/tests/simt/test_simt.o $B/tests/simt/simt.o
$B/tests/simt/test_load $B/tests/simt/test_device_pack: $B/tests/simt/%: $B/tests/unit/%.o $(SIMT_OBJ) $B/libkvc.a
$B/tests/simt/make_inputs: $B/tests/simt/make_inputs.o $B/tests/cuda/made.o $B/libkvc.a
$B/tests/simt/test_cuda: $(CUDA_TEST) $B/tests/cuda/fake.o $(CUDA_API) $(SIMT_OBJ) $B/libkvc.a
$B/tests/simt/test_simt $B/tests/simt/test_load $B/tests/simt/test_device_pack $B/tests/simt/make_inputs $B/tests/simt/test_cuda:
	$(SAY) LD $@
	$(LINK) $(SIMT_UNDEFINED) $^ -lcmocka $(LIBS)

# AVX-512's encoder of rANS on any x86-64: emulated.c takes the place of the library's kernels and of the choice among them.
# SIMDe adds and multiplies signed integers that overflow.
$B/tests/simde/%.o: ISA := -isystem tests/simde -Wno-psabi -fno-sanitize=signed-integer-overflow
$B/tests/simde/emulated.o: tests/simde/immintrin.h
SIMDE_TESTS := $(addprefix $B/tests/simde/,test_rans test_rans_tables)
$(SIMDE_TESTS): $B/tests/simde/%: $B/tests/unit/%.o $B/tests/simde/emulated.o $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ -lcmocka $(LIBS)

## demo: install missing packages (as root; KVC_INSTALL=no: do not), build, pack, inspect, unpack and compare a real sample
.PHONY: demo
demo:
	@sh tests/deps.sh install build
	@$(MAKE) --no-print-directory all
	@sh tests/demo.sh

## check: the quick tests: unit tests, layers, words, symbols, the interface, options of the man pages
.PHONY: check
check: all $(UNIT_BIN) check-layers check-words check-files check-symbols check-abi check-options
	@sh tests/run.sh unit $B

## test: install missing packages as demo does, then everything: unit, CLI, golden, fixtures, fuzz replay, layers, symbols, install, man pages
.PHONY: test
test:
	@sh tests/deps.sh install test
	@$(MAKE) --no-print-directory test-all

.PHONY: test-all
test-all: all $(ATTACKS) $(FAKE_CUDA) $(FAKE_TEST) $(UNIT_BIN) $(FUZZ_NAMES:%=$B/replay/%) $B/tests/golden/golden $(CONFORMANCE) \
  $(if $(HAVE_redis),$B/kvc_store_redis.so $B/tests/store/tier_driver) $(if $(HAVE_s3),$B/tests/store/s3_driver)
	@sh tests/run.sh all $B

ATTACK_SEED ?= 1
## attack: a directory store under a million random operations, ten thousand kills, ten thousand damages of its index, and every call failing in every way; some 40 minutes
.PHONY: attack
attack: $(ATTACKS)
	@$B/tests/store/attack_model 1000000 $(ATTACK_SEED)
	@$B/tests/store/attack_kill 10000 $(ATTACK_SEED)
	@$B/tests/store/attack_index 10000 $(ATTACK_SEED)
	@$B/tests/store/attack_faults 0

ENGINE_TESTS ?=
## test-engine: the tools with a real llama.cpp and transformers, from PyPI; ENGINE_TESTS: parts of the tests' names
.PHONY: test-engine
test-engine: all $(FAKE_CUDA)
	@sh tests/engine/run.sh $B $(ENGINE_TESTS)
	@$(if $(ENGINE_TESTS),,$(MAKE) --no-print-directory check-python PYTHON="$${KVC_ENGINE_VENV:-build/engine-venv}/bin/python")
	@$(if $(ENGINE_TESTS),,PYTHON="$${KVC_ENGINE_VENV:-build/engine-venv}/bin/python" sh tests/cli/run.sh profile-make-torch)

## test-mlx, test-lmcache, test-vllm: files of these engines, written and read by the engine itself, from PyPI
.PHONY: test-mlx test-lmcache test-vllm
test-mlx test-lmcache test-vllm: all
	@sh tests/engine/run_files.sh $(@:test-%=%) $B

## test-connectors: the connectors with the real engines, from PyPI; CONNECTORS: some of them; QUICK=1: shorter prompts
CONNECTORS ?= transformers llama lmcache sglang vllm vllm_tier
.PHONY: test-connectors
test-connectors: all
	@sh tests/connectors/run.sh $(if $(QUICK),--quick) $B $(CONNECTORS)

$(CONFORMANCE): $B/tests/conformance/reader.o $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

## conformance: the conformance set (tests/conformance), read by libkvc and by the second reader; READER: by that program; FAR=1: 4 GiB too
READER ?=
FAR ?=
.PHONY: conformance
conformance: $(if $(READER),,$(CONFORMANCE))
	@"$(PYTHON)" tests/conformance/run.py $(or $(READER),$(CONFORMANCE))
	@$(if $(FAR),"$(PYTHON)" tests/conformance/run.py --far $(or $(READER),$(CONFORMANCE)))
	@$(if $(READER),,"$(PYTHON)" tests/conformance/run.py --second-reader)

## golden: compare decoders with the stored files and digests of tests/golden
.PHONY: golden
golden: $B/tests/golden/golden
	@$< tests/golden

## check-compilers: golden files and the conformance set with libkvc by gcc and clang, -O0 to -O3 and more: a table; an hour of processor time
.PHONY: check-compilers readers
check-compilers:
	@sh tests/compilers.sh $(MAKE)

## check-big-endian: the conformance set by the second reader with a big-endian Python (s390x) under qemu; skipped without qemu
.PHONY: check-big-endian
check-big-endian:
	@sh tests/big-endian.sh

# builds both readers and prints where they are
readers: $B/tests/golden/golden $(CONFORMANCE)
	@echo $B

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

GROWTH_GB ?= 1,4,16,64
## bench-growth: packing, unpacking, checking and comparing of GROWTH_GB, by size, tokens and threads, as tables and curves (build/growth.html); in TMPDIR, as far as it has room
.PHONY: bench-growth
bench-growth: all
	@"$(PYTHON)" tests/bench/growth.py . $(GROWTH_GB) build/growth.html

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

QUALITY_STARTS ?= 4
## quality-greedy: tokens of greedy answers until the first that a decoded cache changes, and KLD, for QUALITY_TEXTS
.PHONY: quality-greedy
quality-greedy: all
	@PYTHON="$(PYTHON)" sh tests/quality/greedy.sh . --texts="$(QUALITY_TEXTS)" --starts=$(QUALITY_STARTS) \
	  $(QUALITY_PROFILE:%=--profile=%)

QUALITY_CONTEXTS ?= 5
## quality-answers: answers about QUALITY_CONTEXTS long prompts that stay right when QUALITY_MODEL runs from decoded caches
.PHONY: quality-answers
quality-answers: all
	@python=$$(PYTHON="$(PYTHON)" sh tests/quality/torch.sh $(filter gemma,$(QUALITY_MODEL))) && "$$python" -m doctest tests/quality/answers.py && \
	  "$$python" tests/quality/answers.py --tools=. --model=$(QUALITY_MODEL) -n $(QUALITY_N) --contexts=$(QUALITY_CONTEXTS) \
	  $(QUALITY_FACTS:%=--facts=%) $(if $(QUALITY_ROWS),--rows="$(QUALITY_ROWS)") $(QUALITY_PROFILE:%=--profile=%)

## fuzz: run every libFuzzer target for FUZZ_SECONDS each (clang)
.PHONY: fuzz
fuzz: $(FUZZ_NAMES:%=$B/fuzz/%)
	@for t in $(FUZZ_NAMES); do mkdir -p build/fuzz-corpus/$$t; \
	  $B/fuzz/$$t -max_total_time=$(FUZZ_SECONDS) -rss_limit_mb=2048 -timeout=20 \
	  build/fuzz-corpus/$$t tests/fuzz/corpus/$${t#fuzz_} || exit 1; done

HOURS ?= 1
## fuzz-hours: run the libFuzzer targets in turn for HOURS, one process, most of the time the container's; logged in tests/fuzz/HOURS.md
.PHONY: fuzz-hours
fuzz-hours: $(FUZZ_NAMES:%=$B/fuzz/%)
	@"$(PYTHON)" tests/fuzz/hours.py $B $(HOURS) $(FUZZ_TARGETS)

## fuzz-replay: run the fuzz targets over the kept corpus, without libFuzzer
.PHONY: fuzz-replay
fuzz-replay: $(FUZZ_NAMES:%=$B/replay/%)
	@for t in $(FUZZ_NAMES); do $B/replay/$$t tests/fuzz/corpus/$${t#fuzz_} || exit 1; done

$B/replay/%: $B/tests/fuzz/%.o $B/tests/fuzz/replay.o $B/libkvc.a
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

$B/replay/fuzz_store_name $B/replay/fuzz_store_object: $B/replay/%: $B/tests/fuzz/%.o $B/tests/fuzz/replay.o $B/libkvc_store.a $B/libkvc.a
	@mkdir -p $(@D)
	$(SAY) LD $@
	$(LINK) $^ $(STORE_LIBS) $(LIBS)

# libFuzzer needs its instrumentation in the library too, which is compiled once for all targets (clang)
$B/fuzz/%.o: %.c | $B/ready
	@mkdir -p $(@D)
	$(SAY) FUZZ $<
	$(Q)$(FUZZ_CC) $(KVC_CPPFLAGS) -std=c11 -g -O1 -ffp-contract=off $(ISA) $(FUZZ_SAN),fuzzer-no-link \
	  -MMD -MP -c -o $@ $<

FUZZ_SAN := -fno-sanitize-recover=undefined -fsanitize=address,undefined
FUZZ_LIB := $(LIB_SRC:%.c=$B/fuzz/%.o)
$B/fuzz/libkvc.a: $(FUZZ_LIB)
	$(Q)rm -f $@ && $(AR) rcs $@ $^
$B/fuzz/libkvc_store.a: $(STORE_SRC:%.c=$B/fuzz/%.o)
	$(Q)rm -f $@ && $(AR) rcs $@ $^

# archives in any order: some targets add others, and those of .kvc files change these by records
$B/fuzz/fuzz_%: $B/fuzz/tests/fuzz/fuzz_%.o $B/fuzz/libkvc.a
	$(Q)$(FUZZ_CC) $(FUZZ_SAN),fuzzer -o $@ -Wl,--start-group $^ -Wl,--end-group $(KVC_LDLIBS)
$B/fuzz/fuzz_container $B/fuzz/fuzz_device: $B/fuzz/tests/fuzz/mutate.o
$B/fuzz/fuzz_store_name $B/fuzz/fuzz_store_object: $B/fuzz/libkvc_store.a
$B/fuzz/fuzz_store_name $B/fuzz/fuzz_store_object: override KVC_LDLIBS += $(STORE_LIBS)

$B/tests/golden/golden: $B/tests/golden/golden.o $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

$B/tests/bench/bench.o: ISA := '-DBENCH_CFLAGS="$(subst ",,$(CFLAGS))"'
$B/tests/bench/bench: $(BENCH_OBJ) $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

$B/tests/quality/queries: $B/tests/quality/queries.o $B/libkvc.a
	$(SAY) LD $@
	$(LINK) $^ $(LIBS)

SAN_UNDEFINED := -fsanitize=undefined -fno-sanitize-recover=undefined
## asan: all tests under the address and undefined-behaviour sanitizers
.PHONY: asan
# What is undefined traps: ASan prints function and line, ubsan the words, whose tables double the start of a process.
asan:
	@ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1:handle_sigill=1 $(MAKE) --no-print-directory test-san CUDA=0 \
	  CFLAGS="-O2 -g1 -fno-omit-frame-pointer -fsanitize=address,undefined -fsanitize-undefined-trap-on-error" \
	  LDFLAGS="-fsanitize=address"

## ubsan: all tests under the undefined-behaviour sanitizer alone
.PHONY: ubsan
ubsan:
	@$(MAKE) --no-print-directory test-san CUDA=0 CFLAGS="-O1 -g1 $(SAN_UNDEFINED)" LDFLAGS="$(SAN_UNDEFINED)"

PROFILE_smollm2 := samples/smollm2-135m-instruct-predict.kvcp
PROFILE_gemma := build/quality/gemma-3-270m.kvcp
PROFILE_qwen := build/quality/qwen2.5-coder-1.5b-instruct.kvcp
## profile: the profile of QUALITY_MODEL (smollm2: that in samples; gemma; qwen: hours) with predictors, from texts that Debian and Python bring; goes on where it was interrupted
.PHONY: profile
profile: all
	@PYTHON="$(PYTHON)" sh tests/quality/profile.sh . $(QUALITY_MODEL) $(PROFILE_$(QUALITY_MODEL))

## lossless-table: lossless ratios of caches of QUALITY_MODEL, for QUALITY_TEXTS, with prediction across layers and without
.PHONY: lossless-table
lossless-table: all
	@python=$$(PYTHON="$(PYTHON)" sh tests/quality/torch.sh $(filter gemma,$(QUALITY_MODEL))) && \
	  "$$python" tests/quality/lossless.py --tools=. --model=$(QUALITY_MODEL) -n $(QUALITY_N) --texts="$(QUALITY_TEXTS)" \
	  --profile=$(or $(QUALITY_PROFILE),$(PROFILE_$(QUALITY_MODEL)))

## queries-table: how near estimated queries are to true ones, by the weights' type
.PHONY: queries-table
queries-table: $B/tests/quality/queries
	@PYTHON="$(PYTHON)" sh tests/quality/queries.sh $B

## estimated-table: KLDs by profiles learnt with true queries, with the weights and with neither; QUALITY_MODEL: smollm2, gemma or FILE.gguf
.PHONY: estimated-table
estimated-table: all
	@python=$$(PYTHON="$(PYTHON)" sh tests/quality/torch.sh $(filter gemma,$(QUALITY_MODEL))) && \
	  "$$python" tests/quality/estimated.py --tools=. --model=$(QUALITY_MODEL)

## learnt-table: ratios and KLDs of slots of llama.cpp with a profile that kvc-pack learnt by itself, and without
.PHONY: learnt-table
learnt-table: all
	@PYTHON="$(PYTHON)" sh tests/quality/learnt.sh .

## tsan: unit tests and threaded tools under the thread sanitizer
.PHONY: tsan
tsan:
	@$(MAKE) --no-print-directory test-san CUDA=0 CFLAGS="-O1 -g1 -fsanitize=thread" LDFLAGS="-fsanitize=thread"

.PHONY: test-san
test-san: $(ATTACKS) $(FAKE_CUDA) $(TOOLS:%=$B/%) $(UNIT_BIN) $(FUZZ_NAMES:%=$B/replay/%) $B/tests/golden/golden $(CONFORMANCE)
	@sh tests/run.sh san $B

# Threads share the counters; a test that is killed leaves none.
COVERAGE := -O1 -g --coverage -fprofile-update=atomic
## coverage: lines of each room that the tests execute, by gcov, with a floor for each (gcc); COVERAGE_FLAGS=-v: the other lines
.PHONY: coverage
coverage:
	@$(MAKE) --no-print-directory test-coverage CUDA=0 CFLAGS="$(COVERAGE)" LDFLAGS=--coverage

.PHONY: test-coverage
test-coverage: $(ATTACKS) $(FAKE_CUDA) $(FAKE_TEST) $(TOOLS:%=$B/%) $(UNIT_BIN) $(FUZZ_NAMES:%=$B/replay/%) $B/tests/golden/golden $(CONFORMANCE)
	@find $B -name '*.gcda' -delete
	@sh tests/run.sh coverage $B
	@"$(PYTHON)" tests/coverage.py $B $(COVERAGE_FLAGS)

## check-layers: rooms use each other one way, by includes and by symbols; no cycles, unique names, no long files
.PHONY: check-layers
check-layers: $(TOOLS:%=$B/%)
	@"$(PYTHON)" tests/check-layers.py $B

## check-size: lines of each room and its budget
.PHONY: check-size
check-size:
	@"$(PYTHON)" tests/check-layers.py --size

## check-layers-test: check-layers reports every fault that is put into a copy of the tree
.PHONY: check-layers-test
check-layers-test:
	@CC="$(CC)" "$(PYTHON)" tests/check-layers-test.py

## check-words: words not to use in comments and documents, and links that lead nowhere
.PHONY: check-words
check-words:
	@sh tests/check-words.sh

## check-files: files of the conformance set are those that were made once, every rule has a number and a test, examples have their numbers
.PHONY: check-files
check-files:
	@"$(PYTHON)" tests/conformance/make_files.py --check
	@"$(PYTHON)" tests/conformance/check_rules.py
	@PYTHONDONTWRITEBYTECODE=1 "$(PYTHON)" tests/conformance/keys_examples.py --check

## analyze: clang-tidy, gcc -fanalyzer and shellcheck, those that are installed; ANALYZE=all: checks with false findings too
.PHONY: analyze
analyze:
	@ANALYZE="$(ANALYZE)" sh tests/analyze.sh $(filter-out -W%,$(KVC_CPPFLAGS) $(CPPFLAGS) $(KVC_CFLAGS)) $(AVX2) $(NEONDOT)

CLANG_FORMAT ?=
## format: format the C code by .clang-format
.PHONY: format
format:
	@CLANG_FORMAT="$(CLANG_FORMAT)" PYTHON="$(PYTHON)" sh tests/check-format.sh --apply

## check-format: the C code is as clang-format would write it; CLANG_FORMAT: which
.PHONY: check-format
check-format:
	@CLANG_FORMAT="$(CLANG_FORMAT)" PYTHON="$(PYTHON)" sh tests/check-format.sh

## check-symbols: the libraries define kvc_ symbols only, the shared ones export what their headers declare, and no function is in two
.PHONY: check-symbols
check-symbols: libkvc.a libkvc.so.$(VERSION) libkvc_store.a $(STORE_SO) $(BACKENDS_SO) $(if $(HAVE_CUDA),$(CUDA_SO))
	@sh tests/check-symbols.sh libkvc.a libkvc_store.a libkvc.so.$(VERSION) formats/api/kvc.h:formats/api/kvc_inspect.h:formats/api/kvc_comparing.h $(STORE_SO) formats/api/kvc_store.h \
	  $(if $(HAVE_CUDA),$(CUDA_SO) formats/api/kvc_cuda.h) -- $(BACKENDS_SO)

## check-memory: caches in memory, through libkvc.so, against numpy where $(PYTHON) has it
.PHONY: check-memory
check-memory: libkvc.so.$(VERSION)
	@"$(PYTHON)" tests/memory-numpy.py ./libkvc.so.$(VERSION)

## check-python: the Python package: with numpy where $(PYTHON) has it; with torch, transformers and mypy likewise
.PHONY: check-python
check-python: libkvc.so.$(VERSION) $(STORE_SO) $(FAKE_CUDA)
	@KVC_LIBRARY="$(CURDIR)/libkvc.so.$(VERSION)" KVC_STORE_LIBRARY="$(CURDIR)/$(STORE_SO)" CC="$(CC)" \
	  KVC_FAKE_CUDA="$(CURDIR)/$(FAKE_CUDA)" KVC_PROFILE_PATH=none \
	  PYTHONDONTWRITEBYTECODE=1 "$(PYTHON)" python/tests/run.py

FRESH ?= bookworm
## check-fresh: README's two commands on a bare Debian in a chroot, as root; FRESH: its release (bookworm, trixie)
.PHONY: check-fresh
check-fresh:
	@sh tests/check-fresh.sh $(FRESH)

# the interface that version 1 promises
ABI := tests/abi/kvc-1.txt
## check-abi: the headers and the libraries against the interface that is recorded in tests/abi: nothing that programs use is gone
.PHONY: check-abi check-abi-test
check-abi: libkvc.so.$(VERSION) $(STORE_SO) $(if $(HAVE_CUDA),$(CUDA_SO))
	@"$(PYTHON)" tests/abi.py check "$(CC)" $(ABI) $^

## check-abi-test: check-abi reports every fault that is put into a recorded interface
check-abi-test:
	@CC="$(CC)" PYTHONDONTWRITEBYTECODE=1 "$(PYTHON)" tests/abi-test.py $(ABI)

## abi: records the interface of the headers, where it only adds to what is recorded; ABI_BREAK=1: also else, before a new SONAME
.PHONY: abi
abi: $(if $(ABI_BREAK),,check-abi)
	@mkdir -p $(dir $(ABI)) && "$(PYTHON)" tests/abi.py write "$(CC)" >$(ABI).new && mv $(ABI).new $(ABI)

## check-cuda: nvcc compiles the kernels for all targets without a warning, and no register of theirs is spilt
.PHONY: check-cuda
# bench_cuda is compiled, too: it runs where there is a GPU alone
check-cuda: $(if $(HAVE_CUDA),$(CUDA_SO) $B/tests/cuda/bench_cuda.o)
	@sh tests/check-cuda.sh "$(HAVE_CUDA)" $(if $(HAVE_CUDA),$C/kernels/device $(CUDA_SO)) $(CUDA_ARCHS)

## test-cuda: libkvc_cuda on a real GPU: every file, preset and layout, a cache of more than 4 GiB, NVIDIA's sanitizer
.PHONY: test-cuda
test-cuda: $(if $(HAVE_CUDA),$B/$(notdir $C)/test_cuda)
	@sh tests/cuda/test.sh "$(HAVE_CUDA)" $(if $(HAVE_CUDA),$<)

BENCH_CUDA ?=
## bench-cuda: rates on a real GPU, against copies of the same bytes; BENCH_CUDA="--quick", "--help": how
.PHONY: bench-cuda
bench-cuda: all $(if $(HAVE_CUDA),$B/$(notdir $C)/bench_cuda)
	@PYTHON="$(PYTHON)" sh tests/cuda/bench.sh "$(HAVE_CUDA)" $(if $(HAVE_CUDA),$B/$(notdir $C)/bench_cuda) $(BENCH_CUDA)

# What the compiler and the C library lack for running the code for GPUs on the host, or nothing.
SIMT_PROBE = mkdir -p $B && printf '%s\n' '\#include <math.h>' '\#include <ucontext.h>' 'int main() { makecontext(0, 0, 0); return (int)sqrtf(0); }' | \
  $(CC) $(CPPFLAGS) $(CFLAGS) $(SIMT_UNDEFINED) -x c++ -o $B/simt-probe - -lm >/dev/null 2>&1 || echo "no C++ (g++), no ucontext or no UBSan"
## test-simt: the code for GPUs on the host, in warps whose lanes advance apart: test_load
.PHONY: test-simt test-simt-quick test-simt-cuda test-simt-tsan
test-simt test-simt-quick test-simt-cuda:
	@reason="$$($(SIMT_PROBE))"; \
	[ -n "$$reason" ] || $(MAKE) --no-print-directory $B/kvc-pack $(SIMT_TESTS) $(if $(filter %-cuda,$@),$B/tests/simt/test_cuda) || exit 1; \
	sh tests/simt/run.sh $B $(if $(filter test-simt,$@),whole,$(@:test-simt-%=%)) "$$reason"

## test-simt-quick: the stored files alone, some 10 s of processor time; part of make test
## test-simt-cuda: all tests for a GPU, test_cuda, likewise, but for the cache of more than 4 GiB; 3 minutes of processor time
## test-simt-tsan: test-simt under the thread sanitizer, which reports races between lanes; SIMT=-quick: test-simt-quick
SIMT ?=
test-simt-tsan:
	@$(MAKE) --no-print-directory test-simt$(SIMT) CUDA=0 CFLAGS="-O1 -g1 -fsanitize=thread" LDFLAGS="-fsanitize=thread"

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

## check-simde: AVX-512's encoder of rANS, emulated where SIMDe's headers are installed
.PHONY: check-simde
check-simde:
	@if printf '%s\n' '#ifndef __x86_64__' '#error' '#endif' '#include <simde/x86/avx512.h>' | \
	  $(CC) $(CPPFLAGS) -E -x c - >/dev/null 2>&1; \
	then $(MAKE) --no-print-directory $(SIMDE_TESTS) && for t in $(SIMDE_TESTS); do $$t || exit 1; done; \
	else echo "SKIPPED: AVX-512's encoder of rANS is not tested: no <simde/x86/avx512.h> (libsimde-dev), or this is no x86-64"; \
	  echo "0 passed, 0 failed, 1 skipped"; fi

ARM_TESTS ?= test_kernels test_kernels_model test_kernels_lossy test_dot_rows test_kernels_transform test_rans test_rans_tables test_dispatch test_codecs test_float_env
## test-arm: ARM64's kernels under qemu: ARM_TESTS, golden files, the conformance set, files beside those of this machine; skipped without a cross compiler
.PHONY: test-arm
test-arm: $(TOOLS:%=$B/%)
	@sh tests/arm.sh make $(MAKE) $B

# with the cross compiler; NATIVE: the tools of this machine
ARM_PROGRAMS := $(TOOLS) $(ARM_TESTS:%=tests/unit/%) tests/golden/golden tests/conformance/reader
.PHONY: test-emulated
test-emulated: $(ARM_PROGRAMS:%=$B/%)
	@sh tests/arm.sh emulate $(NATIVE) $B $(ARM_PROGRAMS)

## check-options: the section OPTIONS of each tool's man page is what make man writes
.PHONY: check-options
check-options: $(TOOLS:%=$B/%)
	@"$(PYTHON)" man/options.py --check $B $(TOOLS:%=man/%.1)

## man-lint: mandoc finds nothing wrong in the man pages
.PHONY: man-lint
man-lint:
	@if command -v mandoc >/dev/null; then mandoc -T lint -W warning man/*.[1-9] && echo "man pages: ok"; \
	else echo "man-lint: mandoc is not installed" >&2; exit 1; fi

-include $(UNIT_BIN:%=%.d) $(FUZZ_SRC:%.c=$B/%.d) $(FUZZ_LIB:.o=.d) $(FUZZ_SRC:%.c=$B/fuzz/%.d) $B/tests/fuzz/replay.d $(BENCH_OBJ:.o=.d) $B/tests/golden/golden.d $(CONFORMANCE:%=%.d)
-include $(ATTACKS:%=%.d) $B/tests/store/tier_driver.d $B/tests/store/s3_driver.d
-include $B/tests/cuda/fake.d $B/tests/cuda/decode_host.d $(CUDA_TEST:.o=.d) $B/tests/simde/emulated.d $(SIMT_OBJ:.o=.d) $B/tests/simt/test_simt.d $B/tests/simt/make_inputs.d $(CUDA_API:.o=.d)
