/* A build without some levels: they are never chosen, and who names one is told the command that builds it. */
#undef GG_HAS_NEON
#undef GG_HAS_AVX2
#undef GG_HAS_AVX512F
#undef GG_HAS_AVX512
#include "base/cpu.c" /* in the place of the archive's */
#include "check.h"

static void test_scalar_alone(void) {
    gg_isa isa = GG_ISA_COUNT;
    unsetenv("GOSSIPGRAD_ISA");
    CHECK_OK(gg_isa_select(NULL, &isa));
    CHECK_INT(isa, GG_ISA_SCALAR);
    for (gg_isa other = GG_ISA_SCALAR + 1; other < GG_ISA_COUNT; ++other) {
        CHECK(!gg_cpu_supports(other));
        const char *wanted = cpu_runs(other) ? "GOSSIPGRAD_ISAS=all pip install -e ." : "this CPU";
        CHECK_FAILS(gg_isa_select(gg_isa_name(other), &isa), GG_ERROR_UNSUPPORTED, wanted);
        CHECK(strstr(gg_error_message(), gg_isa_name(other)) && strstr(gg_error_message(), "scalar"));
        setenv("GOSSIPGRAD_ISA", gg_isa_name(other), 1);
        CHECK_FAILS(gg_isa_select(NULL, &isa), GG_ERROR_UNSUPPORTED, wanted);
        unsetenv("GOSSIPGRAD_ISA");
    }
    const gg_isa best = gg_isa_not_built();
    CHECK(best <= GG_ISA_AVX512 && cpu_runs(best));
    for (gg_isa other = best + 1; other <= GG_ISA_AVX512; ++other) CHECK(!cpu_runs(other));
    CHECK_TEXT(gg_cpu_bfloat16(), "");
}

int main(void) {
    test_scalar_alone();
    return CHECK_RESULT;
}
