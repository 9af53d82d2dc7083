#include "check.h"
#include "dyspec.h"

TEST(batch_rows_share_their_ids) {
    std::vector<int32_t> token(4), pos(4), n_seq_id(4);
    std::vector<int32_t *> seq_id(4);
    std::vector<int8_t> logits(4);
    dyspec_batch batch{
        2, token.data(), nullptr, pos.data(), n_seq_id.data(), seq_id.data(), logits.data()};
    const int32_t tokens[] = {5, 6};
    int32_t ids[] = {1, 2, 0};
    CHECK(dyspec_add_rows(&batch, 4, tokens, 2, 8, ids, 3, 1) == 4);
    CHECK(token[2] == 5 && token[3] == 6 && pos[2] == 8 && pos[3] == 9);
    CHECK(n_seq_id[2] == 3 && n_seq_id[3] == 3 && logits[2] == 1 && logits[3] == 1);
    CHECK(seq_id[2] == ids && seq_id[3] == ids && seq_id[0] == nullptr && token[1] == 0);
    CHECK(dyspec_add_rows(&batch, 4, tokens, 1, 8, ids, 3, 1) == DYSPEC_E_ARGUMENT);
    batch.n_tokens = 0;
    CHECK(dyspec_add_rows(&batch, 4, tokens, 1, 8, ids, 0, 1) == DYSPEC_E_ARGUMENT);
    CHECK(batch.n_tokens == 0);
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
