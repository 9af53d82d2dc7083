// Wall time of what a step does.
#ifndef DYSPEC_CLOCK_H
#define DYSPEC_CLOCK_H

#include <chrono>

namespace dyspec {

using Clock = std::chrono::steady_clock;

inline double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

} // namespace dyspec

#endif
