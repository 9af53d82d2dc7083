// Making what a caller owns by its address.
#ifndef DYSPEC_OBJECTS_H
#define DYSPEC_OBJECTS_H

#include <exception>
#include <utility>

namespace dyspec {

// NULL where there is no room; no exception leaves the library.
template <typename T, typename... Args> T *make(Args &&...args) {
    try {
        return new T(std::forward<Args>(args)...);
    } catch (const std::exception &) {
        return nullptr;
    }
}

} // namespace dyspec

#endif
