// The whole test harness: TEST registers a function, CHECK throws at the first thing that is
// wrong, main.cpp runs them all.
#pragma once

#include <cstdint>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

struct Test {
    const char *name;
    void (*run)();
};

std::vector<Test> &all_tests();

struct Registration {
    Registration(const char *name, void (*run)()) { all_tests().push_back({name, run}); }
};

#define TEST(name)                                                                                 \
    static void name();                                                                            \
    static const Registration name##_registration(#name, name);                                    \
    static void name()

#define CHECK(condition)                                                                           \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            throw std::runtime_error(std::string(__FILE__) + ":" + std::to_string(__LINE__) +      \
                                     ": " #condition);                                             \
        }                                                                                          \
    } while (false)
