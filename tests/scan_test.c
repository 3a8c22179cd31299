/* SPDX-License-Identifier: Apache-2.0
 *
 * scan_test: positions and frames against counting them one by one, and numbers at the edge of what 64 bits hold. */
#include "scan.h"
#include "test.h"

/* Every small scan over every number of frames: positions whose frame is there, counted. */
static void test_counted(void)
{
    size_t wrong = 0;
    for (uint64_t i = 0; i < 5 * 5 * 4 * 4; i++) {
        const struct scan scan = {i % 5 + 1, i / 5 % 5 + 1, i / 25 % 4, i / 100};
        uint64_t end = scan.offset, last = 0;
        wrong += !scan_sound(&scan);
        for (uint64_t y = 0; y < scan.height; y++) {
            for (uint64_t x = 0; x < scan.width; x++) {
                wrong += scan_frame(&scan, y, x) != end++;
                last = end;
            }
            end += scan.skip;
        }
        wrong += scan_end(&scan) != last;
        for (uint64_t n = 0; n < end + 3; n++) {
            uint64_t there = 0;
            for (uint64_t p = 0; p < scan.height * scan.width; p++)
                there += scan_frame(&scan, p / scan.width, p % scan.width) < n;
            wrong += scan_acquired(&scan, n) != there;
        }
    }
    CHECK_INT(wrong, 0);
}

static void test_sound(void)
{
    const uint64_t most = INT64_MAX;
    const struct {
        struct scan scan;
        bool sound;
    } cases[] = {
        {{0, 0, 0, 0}, false},
        {{0, 5, 0, 0}, false},
        {{5, 0, 0, 0}, false},
        {{1, 1, 0, 0}, true},
        {{1, most, 0, 0}, true},
        {{1, most, 0, 1}, false},
        {{1, most, 1, 0}, false},
        {{2, most / 2, 0, 1}, true},
        {{1, 1, most - 1, 0}, true},
        {{1, 1, UINT64_MAX, 0}, false},
        {{1, 1, 0, UINT64_MAX}, false},
        {{UINT64_C(1) << 32, UINT64_C(1) << 32, 0, 0}, false},
        {{UINT64_C(1) << 63, 2, 0, 0}, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        CHECK_MSG(scan_sound(&cases[i].scan) == cases[i].sound, "case %zu", i);
}

int main(void)
{
    test_counted();
    test_sound();
    return test_end();
}
