#define _GNU_SOURCE /* sched_getaffinity */
#include "base/cpu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#if defined(__linux__)
#include <sched.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#define HAVE_CPUID 1
#endif
#if defined(__SSE__)
#include <xmmintrin.h>
#endif

#define NAME_OF(NAME, name) #name,
#define BUILT(NAME, name) GG_IF_BUILT(NAME, true, false),
static const char *const isa_names[GG_ISA_COUNT] = {GG_ISAS(NAME_OF)};
static const bool built[GG_ISA_COUNT] = {GG_ISAS(BUILT)};

const char *gg_isa_name(gg_isa isa) { return (unsigned)isa < GG_ISA_COUNT ? isa_names[isa] : "unknown"; }

#ifdef HAVE_CPUID
/* Tiles, and their products of bfloat16. */
static bool has_amx(void) {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d >> 22 & 1) != 0 && (d >> 24 & 1) != 0;
}
#endif

#ifdef GG_HAS_AMX
static bool amx_permitted;

/* Linux saves the tiles of processes that have asked for it. */
static void permit_amx(void) {
#if defined(__linux__) && defined(SYS_arch_prctl)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    amx_permitted = has_amx() && syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#endif
}

static bool may_use_amx(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, permit_amx);
    return amx_permitted;
}
#elif defined(HAVE_CPUID)
/* On other processors oneDNN tells: this build does not ask itself. */
static bool may_use_amx(void) { return has_amx(); }
#endif

static bool is_built(gg_isa isa) { return (unsigned)isa < GG_ISA_COUNT && built[isa]; }

/* Whether CPU and operating system run code of that level. */
static bool cpu_runs(gg_isa isa) {
    if (isa == GG_ISA_SCALAR) return true;
#ifdef HAVE_CPUID
    /* The builtins also ask whether the operating system saves the wide registers. */
    __builtin_cpu_init();
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi") &&
                __builtin_cpu_supports("bmi2");
    bool avx512f = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512cd");
    bool avx512 = avx512f && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
                  __builtin_cpu_supports("avx512vl");
    switch (isa) {
    case GG_ISA_AVX2: return avx2;
    case GG_ISA_AVX512F: return avx512f;
    case GG_ISA_AVX512: return avx512;
    case GG_ISA_AMX: return avx512 && may_use_amx();
    default: return false;
    }
#elif defined(__aarch64__)
    return isa == GG_ISA_NEON;
#else
    return false;
#endif
}

bool gg_cpu_supports(gg_isa isa) { return is_built(isa) && cpu_runs(isa); }

gg_isa gg_isa_not_built(void) {
    gg_isa best = GG_ISA_AVX512; /* no command brings AMX to a build: that is up to the compiler */
    while (!cpu_runs(best)) --best;
    for (gg_isa isa = best; isa < GG_ISA_COUNT; ++isa)
        if (is_built(isa) && cpu_runs(isa)) return GG_ISA_SCALAR;
    return best;
}

const char *gg_cpu_bfloat16(void) {
#ifdef HAVE_CPUID
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (!gg_cpu_supports(GG_ISA_AVX512)) return "";
    if (may_use_amx()) return "amx";
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d) && (a >> 5 & 1) != 0) return "avx512_bf16";
#endif
    return "";
}

bool gg_cpu_bfloat16_is_fast(void) {
    bool fast = false;
#ifdef HAVE_CPUID
    __builtin_cpu_init();
    const char *name = gg_cpu_bfloat16();
    fast = strcmp(name, "amx") == 0 || (name[0] != '\0' && __builtin_cpu_is("amd"));
#endif
    return fast;
}

/* AMD's Zen 3 and Zen 4 (the latter with AVX-512) have two units that multiply and add, and two that add. */
static bool adds_beside(void) {
    bool does = false;
#ifdef HAVE_CPUID
    enum { BASE_FAMILY = 0xf, FAMILY_19H = 0x19 };
    unsigned a = 0, b = 0, c = 0, d = 0;
    __builtin_cpu_init();
    if (__builtin_cpu_is("amd") && __get_cpuid(1, &a, &b, &c, &d))
        does = (a >> 8 & 0xf) == BASE_FAMILY && BASE_FAMILY + (a >> 20 & 0xff) == FAMILY_19H;
#endif
    return does;
}

static bool pairs_products;

static void choose_paired(void) {
    const char *wanted = getenv("GOSSIPGRAD_PAIRED");
    pairs_products = wanted != NULL && wanted[0] != '\0' ? strcmp(wanted, "0") != 0 : adds_beside();
}

bool gg_cpu_pairs_products(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    (void)pthread_once(&once, choose_paired);
    return pairs_products;
}

gg_status gg_cpu_check_paired(void) {
    const char *wanted = getenv("GOSSIPGRAD_PAIRED");
    if (wanted != NULL && wanted[0] != '\0' && strcmp(wanted, "0") != 0 && strcmp(wanted, "1") != 0)
        return gg_fail(GG_ERROR_ARGUMENT, "GOSSIPGRAD_PAIRED='%s': allowed are 0 and 1", wanted);
    return GG_OK;
}

/* "scalar, avx2": the levels that can be used here, or all. */
static void list_isas(bool all, char *text, size_t bytes) {
    size_t used = 0;
    text[0] = '\0';
    for (int i = 0; i < GG_ISA_COUNT; ++i) {
        if (!all && !gg_cpu_supports((gg_isa)i)) continue;
        int more = snprintf(text + used, bytes - used, "%s%s", used ? ", " : "", isa_names[i]);
        if (more < 0 || (size_t)more >= bytes - used) return;
        used += (size_t)more;
    }
}

gg_status gg_isa_select(const char *name, gg_isa *out) {
    char list[64];
    const char *source = "isa";
    if (!name) {
        source = "GOSSIPGRAD_ISA";
        name = getenv(source);
    }
    if (!name || (!name[0] && strcmp(source, "isa") != 0)) {
        int best = GG_ISA_COUNT - 1;
        while (!gg_cpu_supports((gg_isa)best)) --best;
        *out = (gg_isa)best;
        return GG_OK;
    }
    for (int i = 0; i < GG_ISA_COUNT; ++i) {
        if (strcmp(name, isa_names[i]) != 0) continue;
        if (!gg_cpu_supports((gg_isa)i)) {
            list_isas(false, list, sizeof list);
            const gg_isa with = i == GG_ISA_AMX ? GG_ISA_AVX512 : (gg_isa)i;
            if (cpu_runs((gg_isa)i) && !is_built(with))
                return gg_fail(
                    GG_ERROR_UNSUPPORTED,
                    "%s='%s': this CPU runs it, but it was not built; this build has %s here. In the source tree "
                    "this builds all: GOSSIPGRAD_ISAS=all pip install -e .",
                    source, name, list);
            return gg_fail(GG_ERROR_UNSUPPORTED, "%s='%s': this CPU (%s) and build have %s", source, name,
                           gg_cpu_name(), list);
        }
        *out = (gg_isa)i;
        return GG_OK;
    }
    list_isas(true, list, sizeof list);
    return gg_fail(GG_ERROR_ARGUMENT, "%s='%s': allowed are %s", source, name, list);
}

static char cpu_name[64] = "unknown";
static pthread_once_t cpu_name_once = PTHREAD_ONCE_INIT;

static void find_cpu_name(void) {
#ifdef HAVE_CPUID
    char text[sizeof(unsigned) * 12 + 1] = {0};
    unsigned words[12];
    if (__get_cpuid_max(0x80000000u, NULL) < 0x80000004u) return;
    for (unsigned i = 0; i < 3; ++i)
        if (!__get_cpuid(0x80000002u + i, words + 4 * i, words + 4 * i + 1, words + 4 * i + 2, words + 4 * i + 3))
            return;
    memcpy(text, words, sizeof words);
    /* Makers pad the name with spaces, in front, behind or within. */
    char *to = cpu_name;
    for (const char *from = text; *from; ++from)
        if (*from != ' ' || (to > cpu_name && to[-1] != ' ')) *to++ = *from;
    while (to > cpu_name && to[-1] == ' ') --to;
    *to = '\0';
    if (to == cpu_name) strcpy(cpu_name, "unknown");
#endif
}

const char *gg_cpu_name(void) {
    (void)pthread_once(&cpu_name_once, find_cpu_name);
    return cpu_name;
}

size_t gg_cpu_second_cache(void) {
    long bytes = 0;
#if defined(_SC_LEVEL2_CACHE_SIZE)
    bytes = sysconf(_SC_LEVEL2_CACHE_SIZE);
#endif
    return bytes > 0 ? (size_t)bytes : (size_t)1 << 20;
}

int gg_cpu_count(void) {
#if defined(__linux__)
    cpu_set_t sets[16]; /* 16384 processors: one set alone is too small for the largest machines */
    if (sched_getaffinity(0, sizeof sets, sets) == 0) {
        int count = CPU_COUNT_S(sizeof sets, sets);
        if (count > 0) return count;
    }
#endif
    long online = sysconf(_SC_NPROCESSORS_ONLN);
    return online > 0 ? (int)online : 1;
}

#if defined(__SSE__)
/* MXCSR: flush to zero, all exceptions masked, denormals are zero; rounding is to nearest. */
enum { FLUSH_TO_ZERO = 0x8000, MASKS = 0x1F80, DENORMALS_ARE_ZERO = 0x0040 };

gg_float_mode gg_cpu_float_mode(void) { return _mm_getcsr(); }
void gg_cpu_set_float_mode(gg_float_mode mode) { _mm_setcsr((unsigned)mode); }
gg_float_mode gg_cpu_compute_mode(void) { return FLUSH_TO_ZERO | MASKS | DENORMALS_ARE_ZERO; }
#elif defined(__aarch64__)
/* FPCR: bit 24, FZ, is for operands and results; all else 0 is to nearest and without traps. */
gg_float_mode gg_cpu_float_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
void gg_cpu_set_float_mode(gg_float_mode mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode) : "memory"); }
gg_float_mode gg_cpu_compute_mode(void) { return (gg_float_mode)1 << 24; }
#else
gg_float_mode gg_cpu_float_mode(void) { return 0; }
void gg_cpu_set_float_mode(gg_float_mode mode) { (void)mode; }
gg_float_mode gg_cpu_compute_mode(void) { return 0; }
#endif
