#include "check.h"
#include "dyspec.h"

TEST(abort_reads_its_flag) {
    int32_t flag = 0;
    CHECK(!dyspec_abort(&flag));
    flag = 1;
    CHECK(dyspec_abort(&flag));
}

TEST(abi_version_is_the_headers) {
    CHECK(dyspec_abi_version() == DYSPEC_ABI_VERSION);
}
