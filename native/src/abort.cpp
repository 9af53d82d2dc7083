// The flag that interrupts a pass.
#include "dyspec.h"

bool dyspec_abort(void *flag) {
    return __atomic_load_n(static_cast<const int32_t *>(flag), __ATOMIC_RELAXED) != 0;
}
