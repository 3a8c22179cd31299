/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_picture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENLARGE_TO 128u /* pixels of the longer side, where it has fewer */
#define MIN_HEIGHT 64u  /* of the bar */
#define GAP 8u
#define BAR_WIDTH 12u
#define GLYPH_WIDTH 5u
#define GLYPH_HEIGHT 7u
#define TEXT_ROOM 16u
#define INK 255u

/* Rows from the top, the leftmost pixel in bit 4. */
static const struct {
    char letter;
    uint8_t rows[GLYPH_HEIGHT];
} font[] = {
    {'0', {0x0e, 0x11, 0x13, 0x15, 0x19, 0x11, 0x0e}},
    {'1', {0x04, 0x0c, 0x04, 0x04, 0x04, 0x04, 0x0e}},
    {'2', {0x0e, 0x11, 0x01, 0x02, 0x04, 0x08, 0x1f}},
    {'3', {0x1f, 0x02, 0x04, 0x02, 0x01, 0x11, 0x0e}},
    {'4', {0x02, 0x06, 0x0a, 0x12, 0x1f, 0x02, 0x02}},
    {'5', {0x1f, 0x10, 0x1e, 0x01, 0x01, 0x11, 0x0e}},
    {'6', {0x06, 0x08, 0x10, 0x1e, 0x11, 0x11, 0x0e}},
    {'7', {0x1f, 0x01, 0x02, 0x04, 0x08, 0x08, 0x08}},
    {'8', {0x0e, 0x11, 0x11, 0x0e, 0x11, 0x11, 0x0e}},
    {'9', {0x0e, 0x11, 0x11, 0x0f, 0x01, 0x02, 0x0c}},
    {'.', {0x00, 0x00, 0x00, 0x00, 0x00, 0x0c, 0x0c}},
    {'-', {0x00, 0x00, 0x00, 0x1f, 0x00, 0x00, 0x00}},
    {'+', {0x00, 0x04, 0x04, 0x1f, 0x04, 0x04, 0x00}},
    {'e', {0x00, 0x00, 0x0e, 0x11, 0x1f, 0x10, 0x0e}},
};

bool cli_picture_fits(const struct cli_array *array)
{
    return array->n_dims == 2 && array->shape[0] && array->shape[1] &&
           array->shape[0] <= CLI_PICTURE_MAX && array->shape[1] <= CLI_PICTURE_MAX;
}

static double value_at(const struct cli_array *array, uint64_t i)
{
    if (array->dtype[0] == 'f')
        return ((const double *)array->values)[i];
    if (array->dtype[0] == 'i')
        return (double)((const int64_t *)array->values)[i];
    return (double)((const uint64_t *)array->values)[i];
}

static void find_range(const struct cli_array *array, double *least, double *most)
{
    *least = INFINITY;
    *most = -INFINITY;
    for (uint64_t i = 0; i < array->shape[0] * array->shape[1]; i++) {
        double value = value_at(array, i);
        if (!isfinite(value))
            continue;
        *least = fmin(*least, value);
        *most = fmax(*most, value);
    }
}

static uint8_t grey_of(double value, double least, double most)
{
    if (isnan(value) || !(most > least))
        return 0;
    double part = (value - least) / (most - least);
    return (uint8_t)(255 * fmin(fmax(part, 0), 1) + 0.5);
}

static void draw_letter(const struct cli_picture *picture, char letter, uint32_t x, uint32_t y)
{
    for (size_t g = 0; g < sizeof(font) / sizeof(font[0]); g++) {
        if (font[g].letter != letter)
            continue;
        for (uint32_t row = 0; row < GLYPH_HEIGHT; row++) {
            for (uint32_t column = 0; column < GLYPH_WIDTH; column++) {
                if (font[g].rows[row] >> (GLYPH_WIDTH - 1 - column) & 1)
                    picture->grey[(size_t)(y + row) * picture->width + x + column] = INK;
            }
        }
    }
}

static void draw_number(const struct cli_picture *picture, double value, uint32_t x, uint32_t y)
{
    char text[TEXT_ROOM + 1] = "";
    if (isfinite(value))
        snprintf(text, sizeof(text), "%.7g", value);
    for (size_t i = 0; text[i]; i++)
        draw_letter(picture, text[i], x + (uint32_t)i * (GLYPH_WIDTH + 1), y);
}

bool cli_picture_draw(struct cli_picture *picture, const struct cli_array *array)
{
    uint32_t h = (uint32_t)array->shape[0], w = (uint32_t)array->shape[1], longer = h > w ? h : w;
    uint32_t scale = longer < ENLARGE_TO ? (ENLARGE_TO + longer - 1) / longer : 1;
    uint32_t bar = w * scale + GAP, text = bar + BAR_WIDTH + GAP / 2;
    *picture = (struct cli_picture){.height = h * scale > MIN_HEIGHT ? h * scale : MIN_HEIGHT,
                                    .width = text + TEXT_ROOM * (GLYPH_WIDTH + 1)};
    picture->grey = calloc(picture->height, picture->width);
    if (!picture->grey)
        return false;
    double least, most;
    find_range(array, &least, &most);
    for (uint32_t y = 0; y < h * scale; y++) {
        uint8_t *row = picture->grey + (size_t)y * picture->width;
        uint64_t first = (uint64_t)(y / scale) * w;
        for (uint32_t x = 0; x < w * scale; x++)
            row[x] = grey_of(value_at(array, first + x / scale), least, most);
    }
    for (uint32_t y = 0; y < picture->height; y++)
        memset(picture->grey + (size_t)y * picture->width + bar,
               (int)(255 - 255 * (uint64_t)y / (picture->height - 1)), BAR_WIDTH);
    draw_number(picture, most, text, 0);
    draw_number(picture, least, text, picture->height - GLYPH_HEIGHT);
    return true;
}

void cli_picture_free(struct cli_picture *picture)
{
    free(picture->grey);
    picture->grey = NULL;
}
