#include "check.h"
#include "dyspec.h"

TEST(batch_rows_point_into_the_id_array) {
    std::vector<int32_t> token(4), pos(4), n_seq_id(4);
    std::vector<int32_t *> seq_id(4);
    std::vector<int8_t> logits(4);
    const dyspec_batch batch{token.data(),  pos.data(),    n_seq_id.data(),
                             seq_id.data(), logits.data(), 4};
    const int32_t tokens[] = {5, 6}, positions[] = {8, 9}, offsets[] = {0, 2, 3};
    int32_t ids[] = {1, 2, 0};
    CHECK(dyspec_fill_batch(&batch, 2, 2, tokens, positions, offsets, ids, 1, 3) == 4);
    CHECK(token[2] == 5 && token[3] == 6 && pos[2] == 8 && pos[3] == 9);
    CHECK(n_seq_id[2] == 2 && n_seq_id[3] == 1 && logits[2] == 1 && logits[3] == 1);
    CHECK(seq_id[2] == ids && seq_id[3] == ids + 2 && seq_id[0] == nullptr && token[1] == 0);
    CHECK(dyspec_fill_batch(&batch, 3, 2, tokens, positions, offsets, ids, 1, 3) ==
          DYSPEC_E_ARGUMENT);
    CHECK(dyspec_fill_batch(&batch, 0, 2, tokens, positions, offsets, ids, 1, 2) ==
          DYSPEC_E_SEQUENCES);
    const int32_t none[] = {0, 0, 1};
    CHECK(dyspec_fill_batch(&batch, 0, 2, tokens, positions, none, ids, 1, 3) == DYSPEC_E_ARGUMENT);
}

TEST(abort_reads_its_flag) {
    int32_t flag = 0;
    CHECK(!dyspec_abort(&flag));
    flag = 1;
    CHECK(dyspec_abort(&flag));
}

TEST(abi_version_is_the_headers) {
    CHECK(dyspec_abi_version() == DYSPEC_ABI_VERSION);
}
