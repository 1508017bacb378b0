# pith -- the one build file. `make help` lists the targets; every variable below can be set on the
# command line.
#
# Sources are found by wildcard: a new file under src/, cli/, tests/ or fuzz/ needs no line here.
# Objects, libraries and programs go to $(B), one folder per kind of build (build, build-asan,
# build-fuzz, build-arm ...), so that no two kinds ever mix. The instruction set of a kernel file is
# the suffix of its name (see isa_flags); nothing else is compiled above the baseline.

B        ?= build
PREFIX   ?= /usr/local
DESTDIR  ?=
CFLAGS   ?= -O2 -g
ifeq ($(origin CC),default)
CC       := gcc
endif
AR       ?= ar
LD       ?= ld
OBJCOPY  ?= objcopy
SAN      ?=
# Of `make run`: the same seed draws the same text on every machine; SEED= takes another each time.
PROMPT   ?= A library is a place where
SEED     ?= 2
N        ?= 65
FUZZ_TIME ?= 60
# SERVER=0 leaves `pith serve` out, and with it libmicrohttpd.
SERVER   ?= 1
# PULL=0 leaves `pith pull` out, and with it libcurl and nettle.
PULL     ?= 1
# VULKAN=0 leaves the Vulkan backend out; so does a machine without its headers (libvulkan-dev). Its
# kernels are a file beside the program, build/pith-vulkan.kernels, made where the compiler of
# shaders is (glslc).
GLSLC    ?= glslc
# CUDA=1 makes the kernels for GPUs of NVIDIA, build/pith-cuda.kernels, with CUDA's compiler. The
# program is the same without.
CUDA     ?= 0
NVCC     ?= $(or $(shell command -v nvcc 2>/dev/null),/usr/local/cuda/bin/nvcc)
CUDA_ARCHS ?= 75 80 86 89 90

# Parallel unless -j says otherwise; a make inside this one shares its job slots.
ifeq ($(MAKELEVEL),0)
MAKEFLAGS += -j$(shell nproc) --no-print-directory
endif
Q := $(if $(V),,@)
say = $(if $(V),,@printf '  %-4s %s\n' $1 $2;)
export CC MODEL PROMPT V

# ---------------------------------------------------------------- what the build needs

# Installs or names what is missing, before the compiler is asked anything. Silent and offline when
# nothing is.
ifeq ($(MAKELEVEL),0)
ifneq ($(filter-out clean help format,$(or $(MAKECMDGOALS),all)),)
PARTS    := $(if $(filter 0,$(SERVER)),,server) $(if $(filter 0,$(PULL)),,pull)
ifneq ($(shell scripts/deps.sh build $(PARTS) 1>&2 || echo missing),)
$(error a dependency is missing: see the line above)
endif
endif
endif

ifeq ($(origin VULKAN),undefined)
VULKAN   := $(if $(shell grep -sl VK_KHR_maintenance4 /usr/include/vulkan/vulkan_core.h),1,0)
endif
PKGS     ?= libpcre2-8 libutf8proc jansson libxxhash
PKG_CFLAGS := $(if $(PKGS),$(shell pkg-config --cflags $(PKGS)))
PKG_LIBS := $(if $(PKGS),$(shell pkg-config --libs $(PKGS)))
# Line editing of chats, where libedit's header is; a chat opens the library. EDIT= leaves it out.
EDIT     ?= $(shell pkg-config --exists libedit 2>/dev/null && echo libedit)
EDIT_LEVEL := $(if $(filter 1,$(STATIC)),2,1)
EDIT_CFLAGS := $(if $(EDIT),-DPITH_LIBEDIT=$(EDIT_LEVEL) $(shell pkg-config --cflags $(EDIT)))
EDIT_LIBS :=
SERVER_PKGS := $(if $(filter 0,$(SERVER)),,libmicrohttpd)
SERVER_CFLAGS := $(if $(SERVER_PKGS),-DWITH_SERVER $(shell pkg-config --cflags $(SERVER_PKGS)))
SERVER_LIBS := $(if $(SERVER_PKGS),$(shell pkg-config --libs $(SERVER_PKGS)))
PULL_PKGS := $(if $(filter 0,$(PULL)),,libcurl nettle)
PULL_CFLAGS := $(if $(PULL_PKGS),-DWITH_PULL $(shell pkg-config --cflags $(PULL_PKGS)))
PULL_LIBS := $(if $(PULL_PKGS),$(shell pkg-config --libs nettle))
comma    := ,
# STATIC=1 puts every library but libc into the program, for a tarball that runs anywhere (make
# dist); TLS is opened when it is used.
STATIC   ?= 0
ifeq ($(STATIC),1)
static    = $(if $1,-Wl$(comma)-Bstatic $1 -Wl$(comma)-Bdynamic)
PKG_LIBS := $(call static,$(PKG_LIBS))
EDIT_LIBS := $(if $(EDIT),$(call static,-ledit -ltinfo -lbsd -lmd))
SERVER_LIBS := $(if $(SERVER_PKGS),$(call static,-lmicrohttpd))
PULL_LIBS := $(if $(PULL_PKGS),$(call static,-lnettle))
LAZY_OBJ := $(if $(SERVER_PKGS),$(B)/obj/lazy_tls.o)
else ifeq ($(B),build)
# So that a start loads no TLS library and what that needs: the same of the server alone, where it
# can be.
X86_LINUX := $(findstring x86_64-linux-gnu,$(shell $(CC) -dumpmachine 2>/dev/null))
MHD      := $(wildcard $(shell $(CC) -print-file-name=libmicrohttpd.a))
ifneq ($(and $(SERVER_PKGS),$(X86_LINUX),$(MHD)),)
SERVER_LIBS := -Wl,-Bstatic -lmicrohttpd -Wl,-Bdynamic
LAZY_OBJ := $(B)/obj/lazy_tls.o
endif
# And of nettle its SHA-256.
ifneq ($(and $(PULL_PKGS),$(wildcard $(shell $(CC) -print-file-name=libnettle.a))),)
PULL_LIBS := -Wl,-Bstatic -lnettle -Wl,-Bdynamic
endif
endif
MACHINE  := $(firstword $(subst -, ,$(shell $(CC) -dumpmachine 2>/dev/null)))
VERSION  := $(shell awk '/^\#define PITH_VERSION_[MP]/ {v = v s $$3; s = "."} END {print v}' \
    include/pith.h)
COMMIT   := $(or $(shell git rev-parse --short HEAD 2>/dev/null),release)
SONAME   := libpith.so.$(firstword $(subst ., ,$(VERSION)))

# ---------------------------------------------------------------- sources

ROOMS    ?= base tensor format graph nn arch backend text run api
NO_ISA   := $(if $(filter x86_64,$(MACHINE)),,x86) $(if $(filter aarch64,$(MACHINE)),,arm)
EXCLUDE  := $(if $(filter 1,$(VULKAN)),,src/backend/vulkan/%) \
            $(foreach d,$(NO_ISA),src/backend/cpu/$d/%)
find_c    = $(wildcard $(foreach r,$1,$r/*.c $r/*/*.c $r/*/*/*.c))
LIB_SRC  := $(filter-out $(EXCLUDE),$(call find_c,$(addprefix src/,$(ROOMS))))
CUDA_VERSION := $(if $(filter 1,$(CUDA)),$(shell $(NVCC) --version | \
    sed -n 's/.*release \([0-9]*\)\.\([0-9]*\).*/\1 \2/p' | awk '{print 1000 * $$1 + 10 * $$2}'))
NO_SERVER := $(if $(SERVER_PKGS),,cli/commands/cmd_serve.c cli/models/offers.c cli/models/notify.c)
NO_PULL  := $(if $(PULL_PKGS),,cli/commands/cmd_pull.c cli/pull/%)
CLI_SRC  := $(filter-out $(NO_SERVER) $(NO_PULL),$(call find_c,cli $(if $(SERVER_PKGS),server)))
VULKAN_TESTS := %/test_vulkan.c %/test_vulkan_ops.c
TEST_SRC := $(filter-out $(if $(filter 1,$(VULKAN)),,$(VULKAN_TESTS)),\
    $(wildcard tests/test_*.c tests/*/test_*.c))
TEST_AUX := $(filter-out $(TEST_SRC) $(VULKAN_TESTS) \
    $(addprefix tests/backend/,cann/% vulkan/%),$(call find_c,tests))
BENCH_SRC := $(wildcard bench/*.c bench/*/*.c)
TOOL_SRC := $(wildcard tools/*.c)
FUZZ_SRC := $(wildcard fuzz/fuzz_*.c)

obj       = $(patsubst %.c,$(B)/obj/%.o,$1)
prog      = $(patsubst %.c,$(B)/%,$1)
# Tests lie in a folder for each room; their programs lie in one.
test_prog = $(B)/tests/$(basename $(notdir $1))
TESTS    := $(foreach t,$(TEST_SRC),$(call test_prog,$t))
BENCHES  := $(call prog,$(BENCH_SRC))
TOOLS    := $(call prog,$(TOOL_SRC))
FUZZERS  := $(call prog,$(FUZZ_SRC))

# Kernels of GPUs, files beside the program. A program opens those of its own build: a hash of what
# makes them, and of what they are called with, is in both.
HAS_GLSLC := $(and $(filter 1,$(VULKAN)),$(shell command -v $(GLSLC) 2>/dev/null))
PLUGINS  := $(if $(HAS_GLSLC),$(B)/pith-vulkan.kernels) \
            $(if $(filter 1,$(CUDA)),$(B)/pith-cuda.kernels)
build_of  = $(shell cat $(sort $(wildcard $1)) $(sort $(wildcard src/backend/gpu/*.[ch])) \
    src/graph/step.h | sha256sum | cut -c 1-16)
VULKAN_BUILD := $(call build_of,src/backend/vulkan/shaders/*/*)
CUDA_BUILD := $(call build_of,src/backend/cuda/kernels/*)

# ---------------------------------------------------------------- flags

WARN     := -Wall -Wextra -Wshadow -Wcast-qual -Werror
BASE_FLAGS := -std=gnu11 $(WARN) -D_GNU_SOURCE $(if $(filter 1,$(VULKAN)),-DWITH_VULKAN) -fPIC \
    -fvisibility=hidden -ffp-contract=off -pthread $(PKG_CFLAGS)
SAN_FLAGS := $(if $(SAN),-fsanitize=$(SAN) -fno-sanitize-recover=all -fno-omit-frame-pointer)
LINK_FLAGS := -pthread $(if $(SAN),-fsanitize=$(filter-out fuzzer-no-link,$(SAN))) $(LDFLAGS)
LIBS      = $(PKG_LIBS) -lm -ldl
# Addresses that the loader fills in take a bit each: a quarter of a megabyte less. It needs glibc
# 2.36, so the program that is handed out has none of it.
GLIBC     = $(shell getconf GNU_LIBC_VERSION 2>/dev/null | awk '$$2 >= 2.36')
PACKED    = $(if $(filter x86_64-0,$(MACHINE)-$(STATIC)),$(if \
    $(GLIBC),-Wl$(comma)-z$(comma)pack-relative-relocs))
# Some eighty tests of 17 MB each, were they linked with debug information: DEBUG_TESTS=1 does that.
# Sanitizers name lines with it.
DEBUG_TESTS ?= $(if $(SAN),1,0)
TEST_LINK = $(if $(filter 0,$(DEBUG_TESTS)),-Wl$(comma)--strip-debug)

AVX2     := -mavx2 -mfma -mf16c
AVX512   := $(AVX2) -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512cd -mprefer-vector-width=512
x86_flags = $(if $(filter %_avx2.c %_avxvnni.c,$1),$(AVX2)) \
            $(if $(filter %_avxvnni.c,$1),-mavxvnni) \
            $(if $(filter %_avx512.c %_avx512vnni.c %_avx512bf16.c %_amx.c,$1),$(AVX512)) \
            $(if $(filter %_avx512vnni.c %_avx512bf16.c %_amx.c,$1),-mavx512vnni) \
            $(if $(filter %_avx512bf16.c,$1),-mavx512bf16) \
            $(if $(filter %_amx.c,$1),-mamx-tile -mamx-int8)
arm_flags = $(if $(filter %_dotprod.c,$1),-march=armv8.2-a+dotprod+fp16) \
            $(if $(filter %_i8mm.c,$1),-march=armv8.2-a+dotprod+fp16+i8mm) \
            $(if $(filter %_bf16.c,$1),-march=armv8.2-a+dotprod+fp16+i8mm+bf16)
# A test's file for another machine is empty there, and takes no flags.
isa_flags = $(call $(if $(filter x86_64,$(MACHINE)),x86_flags,arm_flags),$1)
# Kernels and reference ops: the order of every sum is the one that is written (same bits at every
# level); sqrt is one instruction.
EXACT    := -fno-tree-vectorize -fno-strict-aliasing -fno-math-errno
# gcc for AArch64 orders instructions before it gives out registers, and then has to spill most
# accumulators of a kernel.
ORDER    := $(if $(findstring clang,$(CC)),,-fno-schedule-insns)
exact     = $(if $(filter $(addprefix src/,backend/% tensor/% graph/%) \
            tests/%_avx2.c tests/%_avx512vnni.c,$1),\
            $(EXACT) $(call isa_flags,$1)) \
            $(if $(filter src/backend/cpu/arm/%,$1),$(ORDER))
# Where a kernel keeps each variable takes gcc as long as the kernel itself: lines alone, which
# profiles need. Tests are linked without debug information.
debug     = $(if $(findstring -g,$(CFLAGS)),$(if $(SAN),,$(if $(call isa_flags,$1),-g1) \
            $(if $(and $(filter 0,$(DEBUG_TESTS)),$(filter tests/%,$1)),-g0)))
# A program that is handed out (STATIC=1) is small where nothing is computed: bits are the same.
# Nobody unwinds the stack of a stripped one, nor through a program's own files (debuggers read
# other tables), nor through what has to do with text and architectures, which call nobody of
# outside; callers of the library may.
FAST     := src/base/% src/tensor/% src/text/vocab/% src/text/grammar/% src/run/sample/% \
            $(addprefix src/backend/cpu/,run.c x86/% logits/% ops/%)
small     = $(if $(or $(filter 1,$(STATIC)),$(filter cli/% server/% src/text/% src/arch/%,$1)), \
            -fno-asynchronous-unwind-tables) \
            $(if $(and $(filter 1,$(STATIC)),$(filter-out $(FAST),$1)),-Os)
# Nothing is computed there: a third less to compile, and lines that a debugger can follow.
COLD     := cli/% server/% $(addprefix src/,api/% arch/% nn/% format/% text/chat/% \
            text/grammar/rules.c backend/cann/%)
# What runs once for a grammar, while a model is opened, or for a report may be small as well: the
# program is to stay under 5 MB.
TINY     := $(addprefix src/text/grammar/,schema/% regex/% native.c gbnf.c calls.c regular.c \
            without.c charset.c) \
            $(addprefix src/run/model/,bind.c columns.c heads.c place.c slices.c spread.c) \
            $(addprefix src/run/session/,report.c upload.c)
cold      = $(if $(filter -O2,$(CFLAGS)),$(if $(filter $(TINY),$1),-Os,\
            $(if $(filter $(COLD),$1),-O1)))
convert   = $(if $(filter src/base/% src/format/% src/text/%,$1),-Wconversion)
# Fuzzers are after parsers: kernels read no untrusted bytes, and instrumented by clang one takes
# minutes to compile (make asan has them).
sanitize  = $(if $(and $(findstring fuzzer,$(SAN)),$(filter src/backend/cpu/%,$1),\
            $(strip $(call isa_flags,$1))),,$(SAN_FLAGS))
commit    = $(if $(filter src/api/%,$1),-DPITH_COMMIT='"$(COMMIT)"')
# Programs see the public header alone; tests and fuzzers see the rooms too.
kernels   = $(if $(filter src/backend/vulkan/%,$1),-DKERNELS_BUILD='"$(VULKAN_BUILD)"') \
            $(if $(filter src/backend/cuda/%,$1),-DKERNELS_BUILD='"$(CUDA_BUILD)"')
includes  = -Iinclude \
            $(if $(filter cli/% server/% tools/%,$1),-I. $(SERVER_CFLAGS) $(PULL_CFLAGS),-Isrc) \
            $(if $(filter tests/% fuzz/% bench/%,$1),-Itests) $(if $(filter tests/server/%,$1),-I.)

# ---------------------------------------------------------------- targets

.PHONY: all programs run check test soak asan ubsan tsan arm arm-program fuzz bench install dist \
    uninstall clean format help fuzzers FORCE
.DEFAULT_GOAL := all
.DELETE_ON_ERROR:
.SECONDARY:

## all: the program, both libraries, kernels of GPUs (build/pith, libpith.a, libpith.so, *.kernels)
all: $(if $(CLI_SRC),$(B)/pith) $(B)/libpith.a $(B)/libpith.so $(TOOLS) $(PLUGINS)

## programs: all of that without the shared library, and every test program
programs: $(if $(CLI_SRC),$(B)/pith) $(TESTS) $(TOOLS) $(PLUGINS)

## run: build, fetch the small default model once, stream an answer (MODEL= PROMPT= SEED= N=)
run: $(B)/pith
	@model=$$(scripts/model.sh) && printf '%s ...\n' "$$PROMPT" && \
	exec $(B)/pith run "$$model" -p "$$PROMPT" -n $(N) $(if $(SEED),--seed $(SEED))

## check: the quick loop: tests at their smallest, the rules of the house; no network, no GPU
check: all $(TESTS)
	@B=$(B) TEST_QUICK=1 TEST_SCALE=1 TEST_LIMIT=180 TEST_JOBS=$$(($$(nproc) + 2)) scripts/run_tests.sh

## test: everything at reduced counts, with the default model (what CI runs)
test: all $(TESTS)
	@B=$(B) TEST_SCALE=10 TEST_LIMIT=600 TEST_MODEL=1 scripts/run_tests.sh

## soak: full counts; takes hours
soak: all $(TESTS)
	@B=$(B) TEST_SCALE=100 TEST_LIMIT=14400 TEST_MODEL=1 scripts/run_tests.sh

## asan, ubsan, tsan: tests and program under address + undefined, undefined, thread sanitizer
asan: SANITIZERS := address,undefined
ubsan: SANITIZERS := undefined
tsan: SANITIZERS := thread
asan ubsan tsan:
	@$(MAKE) B=build-$@ SAN=$(SANITIZERS) CFLAGS="-O1 -g" programs
	@LSAN_OPTIONS=suppressions=$(CURDIR)/scripts/lsan.supp:print_suppressions=0 \
	    B=build-$@ TEST_LIMIT=1800 TEST_RULES=0 scripts/run_tests.sh

## fuzz: each fuzz/fuzz_*.c for FUZZ_TIME seconds (60); new inputs stay in build-fuzz/corpus
fuzz:
	@scripts/deps.sh fuzz
	@$(MAKE) B=build-fuzz CC=clang SAN=fuzzer-no-link,address,undefined CFLAGS="-O1 -g" fuzzers
	@B=build-fuzz FUZZ_TIME=$(FUZZ_TIME) scripts/run_fuzz.sh

## arm: for AArch64, under qemu-user: the kernels' tests, and whole models against bytes of here
# Tests that include a room of these, and neither a room above nor the public functions.
GPU_TESTS := $(VULKAN_TESTS) \
    $(addprefix %/test_,cuda.c cuda_ops.c cuda_attn.c cuda_host.c cann.c)
ARM_TESTS = $(foreach t,$(shell grep -lE '"(base|tensor|graph|backend)/' \
    $(filter-out $(GPU_TESTS),$(TEST_SRC)) | xargs -r grep -LE \
    '"(format|nn|arch|text|run|api)/|"pith\.h"|pith_[a-z]+_open'),tests/$(basename $(notdir $t)))
ARM      := aarch64-linux-gnu-
ARM_MAKE = $(MAKE) B=build-arm CC=$(ARM)gcc AR=$(ARM)ar LD=$(ARM)ld OBJCOPY=$(ARM)objcopy \
    PKGS= EDIT= SERVER=0 PULL=0 VULKAN=0 CPPFLAGS="-idirafter /usr/include -DXXH_INLINE_ALL=" \
    LDFLAGS=-static CFLAGS=$(ARM_CFLAGS)
ARM_CFLAGS ?= -O2
arm: all
	@scripts/deps.sh arm
	+@$(ARM_MAKE) PKG_LIBS= $(addprefix build-arm/,$(ARM_TESTS))
	@B=build-arm TEST_LIMIT=1800 TEST_RULES=0 TEST_WRAP="qemu-aarch64 -cpu max" scripts/run_tests.sh
	@TEST_SCALE=10 tests/backend/test_arm.sh

# The libraries of the text room are this machine's: their headers serve, and nothing that needs
# their code is run; xxHash is all header.
arm-program:
	+@$(ARM_MAKE) PKG_LIBS=-Wl,--unresolved-symbols=ignore-all build-arm/pith \
	    build-arm/tests/test_mm

## bench: what this machine can do and how near the default model comes to it (MODEL=)
bench: all $(BENCHES)
	@model=$$(scripts/model.sh) && exec $(B)/pith bench "$$model"

## install: program, headers, libraries, kernels of GPUs, manual page, unit (PREFIX= DESTDIR=)
install: all
	install -d $(addprefix $(DESTDIR)$(PREFIX)/,bin include/pith lib/pith lib/pkgconfig \
	    share/man/man1 lib/systemd/system)
	install -s -m 755 $(B)/pith $(DESTDIR)$(PREFIX)/bin/
	install -m 644 include/pith.h $(DESTDIR)$(PREFIX)/include/
	install -m 644 include/pith/*.h $(DESTDIR)$(PREFIX)/include/pith/
	install -m 644 $(B)/libpith.a $(DESTDIR)$(PREFIX)/lib/
	install -m 755 $(B)/libpith.so $(DESTDIR)$(PREFIX)/lib/libpith.so.$(VERSION)
	ln -sf libpith.so.$(VERSION) $(DESTDIR)$(PREFIX)/lib/$(SONAME)
	ln -sf $(SONAME) $(DESTDIR)$(PREFIX)/lib/libpith.so
	$(if $(strip $(PLUGINS)),install -m 644 $(PLUGINS) $(DESTDIR)$(PREFIX)/lib/pith/)
	sed -e 's|@PREFIX@|$(PREFIX)|; s|@VERSION@|$(VERSION)|; s|@REQUIRES@|$(PKGS)|' pith.pc.in \
	    >$(DESTDIR)$(PREFIX)/lib/pkgconfig/pith.pc
	$(B)/pith man >$(DESTDIR)$(PREFIX)/share/man/man1/pith.1
	sed -e 's|@PREFIX@|$(PREFIX)|' scripts/pith.service \
	    >$(DESTDIR)$(PREFIX)/lib/systemd/system/pith.service
	$(if $(DESTDIR),,ldconfig 2>/dev/null || true)

## dist: a tarball for any x86-64 Linux (glibc 2.31), a .deb, both tried in a bare root (as root)
dist:
	@packaging/dist.sh $(B)/dist

## uninstall: remove what install wrote
uninstall:
	rm -f $(addprefix $(DESTDIR)$(PREFIX)/,bin/pith include/pith.h include/pith/*.h \
	    lib/libpith.a lib/libpith.so lib/$(SONAME) lib/libpith.so.$(VERSION) \
	    lib/pith/pith-vulkan.kernels lib/pith/pith-cuda.kernels lib/pkgconfig/pith.pc \
	    share/man/man1/pith.1 lib/systemd/system/pith.service)

## clean: remove every build folder
clean:
	rm -rf build build-asan build-ubsan build-tsan build-fuzz build-arm build-clang build-cuda

## format: lay out the C sources with clang-format (optional, not enforced)
format:
	@scripts/format.sh

## help: this list
help:
	@echo 'usage: make [target] [VARIABLE=value]   V=1 shows every command; CC=clang: another compiler'
	@sed -n 's/^## \([^:]*\): /\1\t/p' $(firstword $(MAKEFILE_LIST)) | \
	    awk -F'\t' '{printf "  %-18s %s\n", $$1, $$2}'

# ---------------------------------------------------------------- rules

# Rewritten only when it differs, so that other flags or another compiler rebuild everything and the
# same ones nothing.
FLAGS_NOW := $(CC) $(CFLAGS) $(CPPFLAGS) $(BASE_FLAGS) $(EDIT_CFLAGS) $(SAN_FLAGS) $(EXACT) \
    $(AVX512) $(LINK_FLAGS) $(SERVER_CFLAGS) $(PULL_CFLAGS) \
    $(COLD) $(TINY) $(FAST) \
    $(if $(filter 1,$(CUDA)),$(CUDA_VERSION) $(CUDA_ARCHS)) $(if $(filter 1,$(STATIC)),small)
$(B)/flags: FORCE
	@mkdir -p $(@D); printf '%s\n' '$(FLAGS_NOW)' | cmp -s - $@ || printf '%s\n' '$(FLAGS_NOW)' >$@
$(B)/commit: FORCE
	@mkdir -p $(@D); echo $(COMMIT) | cmp -s - $@ || echo $(COMMIT) >$@
$(call obj,$(filter src/api/%,$(LIB_SRC))): $(B)/commit
$(B)/plugins: FORCE
	@mkdir -p $(@D); now='vulkan $(VULKAN_BUILD) cuda $(CUDA_BUILD)'; \
	    echo "$$now" | cmp -s - $@ || echo "$$now" >$@
$(call obj,$(filter src/backend/vulkan/% src/backend/cuda/%,$(LIB_SRC))): $(B)/plugins

$(B)/obj/%.o: %.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,CC,$<)$(CC) $(BASE_FLAGS) $(CFLAGS) $(call debug,$<) $(call cold,$<) $(call small,$<) \
	    $(CPPFLAGS) $(call sanitize,$<) $(call includes,$<) $(call exact,$<) $(call convert,$<) \
	    $(call commit,$<) $(call kernels,$<) $(if $(filter cli/%,$<),$(EDIT_CFLAGS)) \
	    -MMD -MP -c -o $@ $<

SHADER_DIR := src/backend/vulkan/shaders
SHADERS  := $(wildcard $(SHADER_DIR)/*/*.comp)
SPIRV    := $(patsubst $(SHADER_DIR)/%.comp,$(B)/spirv/%.spv,$(SHADERS))
$(B)/spirv/%.spv: $(SHADER_DIR)/%.comp $(wildcard $(SHADER_DIR)/shared/*.glsl)
	@mkdir -p $(@D)
	$(call say,GLSL,$<)$(GLSLC) -O -Werror -std=460 --target-env=vulkan1.2 \
	    -I $(SHADER_DIR)/shared -o $@ $<
$(B)/pith-vulkan.kernels: $(SPIRV) packaging/plugin.sh $(B)/plugins
	$(call say,KERN,$@)packaging/plugin.sh $@ vulkan $(VULKAN_BUILD) 0 $(SPIRV)

# Kernels of CUDA: a file of machine code for each generation and what later ones can be compiled
# from. And, for tests on machines without a GPU, the same files as C++ for the host, and a library
# that stands in for the driver's.
KERNELS  := $(wildcard src/backend/cuda/kernels/*.cu)
CUDA_HEADERS := $(wildcard src/backend/cuda/kernels/*.cuh)
FATBINS  := $(patsubst %.cu,$(B)/cuda/%.fatbin,$(notdir $(KERNELS)))
GENCODE  := $(foreach a,$(CUDA_ARCHS),-gencode arch=compute_$a$(comma)code=sm_$a) \
            $(foreach a,$(lastword $(CUDA_ARCHS)),-gencode arch=compute_$a$(comma)code=compute_$a)
# What only 9.0 has is in code for just that.
$(addprefix $(B)/cuda/,wgmma.fatbin flash.fatbin) $(B)/gpu_roof: GENCODE := \
    $(patsubst arch=compute_90$(comma)code=sm_90,arch=compute_90a$(comma)code=sm_90a,$(GENCODE))
$(B)/cuda/%.fatbin: src/backend/cuda/kernels/%.cu $(CUDA_HEADERS) $(B)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) -fatbin -std=c++17 -O3 --fmad=false -Werror all-warnings $(GENCODE) \
	    -o $@ $<
$(B)/pith-cuda.kernels: $(FATBINS) packaging/plugin.sh $(B)/plugins
	$(call say,KERN,$@)packaging/plugin.sh $@ cuda $(CUDA_BUILD) $(CUDA_VERSION) $(FATBINS)

# What a GPU can do, for scripts/gpu.sh.
$(B)/gpu_roof: bench/gpu_roof.cu $(B)/flags
	@mkdir -p $(@D)
	$(call say,NVCC,$<)$(NVCC) -std=c++17 -O3 -Werror all-warnings $(GENCODE) -o $@ $<

CXX_FLAGS = -std=c++17 $(WARN) -fPIC -fvisibility=hidden -ffp-contract=off -fno-strict-aliasing \
            -fno-math-errno -Itests/backend/cuda \
            $(if $(filter x86_64,$(MACHINE)),$(AVX2)) -O2 -g1
STANDIN  := $(addprefix $(B)/tests/cuda-,driver.so kernels.so nccl.so checked.so faults.so old.so)
# Kernels whose accesses are looked at (tests/backend/cuda/checks.cpp has what these call).
CHECKED  := -DHOST_CHECKS -O1 -fno-tree-vectorize -fsanitize=thread \
            -fsanitize=alignment,bounds,shift,signed-integer-overflow
$(B)/cuda/host/%.o: src/backend/cuda/kernels/%.cu $(CUDA_HEADERS) \
    $(wildcard tests/backend/cuda/*.h) $(B)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(CXX) -x c++ $(CXX_FLAGS) -c -o $@ $<
$(B)/cuda/host/%.o: tests/backend/cuda/%.cpp $(wildcard tests/backend/cuda/*.h) $(B)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(CXX) $(CXX_FLAGS) -c -o $@ $<
$(B)/tests/cuda-kernels.so: $(patsubst %.cu,$(B)/cuda/host/%.o,$(notdir $(KERNELS))) \
    $(addprefix $(B)/cuda/host/,host.o hopper.o)
$(B)/cuda/checked/%.o: src/backend/cuda/kernels/%.cu $(CUDA_HEADERS) \
    $(wildcard tests/backend/cuda/*.h) $(B)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$< checked)$(CXX) -x c++ $(CXX_FLAGS) $(CHECKED) -c -o $@ $<
$(B)/cuda/checked/faults.o: tests/backend/cuda/faults.cu $(CUDA_HEADERS) \
    $(wildcard tests/backend/cuda/*.h) $(B)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$<)$(CXX) -x c++ -Isrc $(CXX_FLAGS) $(CHECKED) -c -o $@ $<
$(B)/cuda/checked/%.o: tests/backend/cuda/%.cpp $(wildcard tests/backend/cuda/*.h) $(B)/flags
	@mkdir -p $(@D)
	$(call say,CXX,$< checked)$(CXX) $(CXX_FLAGS) -DHOST_CHECKS -c -o $@ $<
RUNS_CHECKED := $(addprefix $(B)/cuda/checked/,host.o hopper.o checks.o)
$(B)/tests/cuda-checked.so: $(patsubst %.cu,$(B)/cuda/checked/%.o,$(notdir $(KERNELS))) \
    $(RUNS_CHECKED)
$(B)/tests/cuda-faults.so: $(B)/cuda/checked/faults.o $(RUNS_CHECKED)
$(B)/tests/cuda-driver.so: $(B)/cuda/host/driver.o
$(B)/tests/cuda-nccl.so: $(B)/cuda/host/nccl.o
$(B)/tests/cuda-old.so: $(B)/cuda/host/old.o
$(STANDIN):
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CXX) -shared -o $@ $^ -ldl
$(B)/tests/test_cuda $(addprefix $(B)/tests/test_cuda_,ops attn host): | $(STANDIN) $(PLUGINS)
$(B)/tests/test_vulkan $(B)/tests/test_vulkan_ops: | $(PLUGINS)
# A loader that stands before the machine's.
$(B)/tests/vulkan-queues.so: tests/backend/vulkan/queues.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(STANDIN_FLAGS) -shared -o $@ $< -ldl -lpthread
$(B)/tests/test_vulkan: | $(B)/tests/vulkan-queues.so

# What stands in for CANN's libraries; and one that is too old.
STANDIN_FLAGS = -std=gnu11 $(BASE_FLAGS) -fPIC -fvisibility=hidden -ffp-contract=off -O2 -g
$(B)/tests/cann.so: $(addprefix tests/backend/cann/,acl.c ops.c standin.h) $(B)/flags
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(STANDIN_FLAGS) -shared -o $@ $(filter %.c,$^) -lm -lpthread
$(B)/tests/cann-old.so: tests/backend/cann/old.c $(B)/flags
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(STANDIN_FLAGS) -shared -o $@ $<
$(B)/tests/test_cann: | $(B)/tests/cann.so $(B)/tests/cann-old.so

# The assembler puts the files of the web page into it.
$(call obj,server/api/api_web.c): $(wildcard server/web/*)

# Two archives of the same objects. rooms.a shows the rooms to each other, for the tests. libpith.a
# shows pith_* alone, for programs: its one object is all of them linked once, with every hidden
# name made local, so that no name of ours can meet one of a program's own. The list of members is a
# prerequisite: a deleted source leaves the archives too. q, not r: rooms may use the same file
# name.
$(B)/members: FORCE
	@mkdir -p $(@D); printf '%s\n' $(LIB_SRC) | cmp -s - $@ || printf '%s\n' $(LIB_SRC) >$@
$(B)/rooms.a: $(call obj,$(LIB_SRC)) $(B)/members
	$(call say,AR,$@)rm -f $@ && $(AR) qcs $@ $(filter %.o,$^)
$(B)/obj/libpith.o: $(call obj,$(LIB_SRC)) $(B)/members
	$(call say,LD,$@)$(LD) -r -o $@ $(filter %.o,$^) && $(OBJCOPY) --localize-hidden $@
$(B)/libpith.a: $(B)/obj/libpith.o
	$(call say,AR,$@)rm -f $@ && $(AR) qcs $@ $<

$(B)/libpith.so: $(call obj,$(LIB_SRC)) $(B)/members
	$(call say,LD,$@)$(CC) -shared -Wl,-soname,$(SONAME) -Wl,--no-undefined -Wl,-z,relro,-z,now \
	    $(LINK_FLAGS) -o $@ $(filter %.o,$^) $(LIBS)
	@ln -sf libpith.so $(B)/$(SONAME)

$(B)/lazy_tls.c: packaging/lazy.sh
	@mkdir -p $(@D)
	packaging/lazy.sh "$$($(CC) -print-file-name=libmicrohttpd.a)" libgnutls.so.30 gnutls_ >$@
$(B)/obj/lazy_tls.o: $(B)/lazy_tls.c
	$(CC) -O2 -c -o $@ $<

$(B)/pith: $(call obj,$(CLI_SRC)) $(B)/libpith.a $(LAZY_OBJ) | $(PLUGINS)
	$(call say,LD,$@)$(CC) $(LINK_FLAGS) $(PACKED) -Wl,--compress-debug-sections=zlib -o $@ $^ \
	    $(EDIT_LIBS) $(LIBS) $(SERVER_LIBS) $(PULL_LIBS)

# What tests share, as an archive: each takes what it uses.
$(B)/shared.a: $(call obj,$(TEST_AUX))
	$(call say,AR,$@)rm -f $@ && $(AR) qcs $@ $^

$(foreach t,$(TEST_SRC),$(eval $(call test_prog,$t): $(call obj,$t)))
$(TESTS): $(if $(TEST_AUX),$(B)/shared.a) $(B)/rooms.a
$(BENCHES): $(B)/bench/%: $(B)/obj/bench/%.o $(B)/rooms.a
$(TOOLS): $(B)/tools/%: $(B)/obj/tools/%.o $(B)/libpith.a
$(TESTS) $(BENCHES) $(TOOLS):
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) $(LINK_FLAGS) $(TEST_LINK) -o $@ $^ $(LIBS)

fuzzers: $(FUZZERS)
$(FUZZERS): $(B)/fuzz/%: $(B)/obj/fuzz/%.o $(B)/rooms.a
	@mkdir -p $(@D)
	$(call say,LD,$@)$(CC) -fsanitize=fuzzer,address,undefined -pthread $(LDFLAGS) -o $@ $^ $(LIBS)

FORCE:

SOURCES  := $(LIB_SRC) $(CLI_SRC) $(TEST_SRC) $(TEST_AUX) $(BENCH_SRC) $(TOOL_SRC) $(FUZZ_SRC)
-include $(patsubst %.o,%.d,$(call obj,$(SOURCES)))
