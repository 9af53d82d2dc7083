#include "check.h"

#include <cstdio>

std::vector<Test> &all_tests() {
    static std::vector<Test> tests;
    return tests;
}

int main() {
    int n_failed = 0;
    for (const Test &test : all_tests()) {
        try {
            test.run();
            std::printf("ok      %s\n", test.name);
        } catch (const std::exception &error) {
            n_failed++;
            std::printf("FAILED  %s: %s\n", test.name, error.what());
        }
    }
    std::printf("%zu tests, %d failed\n", all_tests().size(), n_failed);
    return n_failed == 0 ? 0 : 1;
}
