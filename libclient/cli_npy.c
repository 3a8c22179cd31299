/* SPDX-License-Identifier: Apache-2.0
 *
 * A .npy file: 6 bytes of magic, version, length of the header (u16, from version 2 on u32), a Python dictionary as
 * text, the elements. */
#include "cli_npy.h"
#include "cli.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MAX_HEADER 65536u
#define MAX_DIMS 3u

struct npy {
    FILE *file;
    const char *path;
    char kind; /* b, i, u, f */
    size_t bytes;
    bool swapped, fortran;
    uint64_t shape[MAX_DIMS];
    unsigned n_dims;
};

static bool refuse(const struct npy *npy, const char *why)
{
    cli_failed("%s: %s", npy->path, why);
    return false;
}

static const char *skip_blanks(const char *at)
{
    return at + strspn(at, " \t\n");
}

/* What follows the key in the header's dictionary; NULL: it is not there. */
static const char *find_value(const char *header, const char *key)
{
    const char *at = strstr(header, key);
    if (!at)
        return NULL;
    at = skip_blanks(at + strlen(key));
    return *at == ':' ? skip_blanks(at + 1) : NULL;
}

static bool take_type(struct npy *npy, const char *at)
{
    char order = 0, kind = 0, quote = 0;
    unsigned bytes = 0;
    if (!at || sscanf(at, "'%c%c%2u%c", &order, &kind, &bytes, &quote) != 4 || quote != '\'' ||
        !strchr("<>|=", order))
        return refuse(
            npy,
            "elements of a type that is no plain number; a mask is bool, an integer or a float");
    bool known =
        (kind == 'b' && bytes == 1) ||
        ((kind == 'i' || kind == 'u') && (bytes == 1 || bytes == 2 || bytes == 4 || bytes == 8)) ||
        (kind == 'f' && (bytes == 2 || bytes == 4 || bytes == 8));
    if (!known) {
        cli_failed("%s: elements of type %c%u; a mask is bool, an integer, or a float of up to 64 "
                   "bits: save it with .astype('f8')",
                   npy->path, kind, bytes);
        return false;
    }
    npy->kind = kind;
    npy->bytes = bytes;
    npy->swapped = order == '>';
    return true;
}

static bool take_shape(struct npy *npy, const char *at)
{
    if (!at || *at != '(')
        return refuse(npy, "a header without a shape");
    at = skip_blanks(at + 1);
    while (*at != ')') {
        char *end;
        errno = 0;
        unsigned long long n =
            *at >= '0' && *at <= '9' ? strtoull(at, &end, 10) : (errno = EINVAL, 0);
        if (errno)
            return refuse(npy, "a header whose shape is none");
        if (npy->n_dims == MAX_DIMS)
            return refuse(npy, "more than three dimensions; a mask has the detector's two");
        npy->shape[npy->n_dims++] = n;
        at = skip_blanks(end);
        if (*at == ',')
            at = skip_blanks(at + 1);
        else if (*at != ')')
            return refuse(npy, "a header whose shape is none");
    }
    return true;
}

static bool read_header(struct npy *npy)
{
    uint8_t head[12];
    if (fread(head, 10, 1, npy->file) != 1 || memcmp(head, "\x93NUMPY", 6) != 0)
        return refuse(npy, "this is no .npy file");
    if (head[6] < 1 || head[6] > 3)
        return refuse(npy, "a .npy file of a version that is not known here (1 to 3 are)");
    size_t bytes = head[8] | (size_t)head[9] << 8;
    if (head[6] > 1) {
        if (fread(head + 10, 2, 1, npy->file) != 1)
            return refuse(npy, "the file ends within its header");
        bytes |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
    }
    char *header = bytes <= MAX_HEADER ? calloc(1, bytes + 1) : NULL;
    if (!header)
        return refuse(npy, "a header that is too long");
    bool ok = fread(header, 1, bytes, npy->file) == bytes;
    if (!ok)
        refuse(npy, "the file ends within its header");
    const char *order = find_value(header, "'fortran_order'");
    npy->fortran = order && strncmp(order, "True", 4) == 0;
    ok = ok && take_type(npy, find_value(header, "'descr'")) &&
         take_shape(npy, find_value(header, "'shape'"));
    free(header);
    return ok;
}

/* ---- elements ------------------------------------------------------------------------------------- */

static double half(uint16_t bits)
{
    int exponent = bits >> 10 & 31;
    double value = bits & 1023;
    if (exponent == 31)
        value = value != 0 ? NAN : INFINITY;
    else
        value = exponent ? ldexp(value + 1024, exponent - 25) : ldexp(value, -24);
    return bits & 0x8000 ? -value : value;
}

/* false: an integer that 32 bits with a sign do not hold. */
static bool element(const struct npy *npy, const uint8_t *at, double *value)
{
    uint64_t bits = 0;
    for (size_t i = 0; i < npy->bytes; i++)
        bits = bits << 8 | at[npy->swapped ? i : npy->bytes - 1 - i];
    unsigned unused = 64 - 8 * (unsigned)npy->bytes;
    if (npy->kind == 'f' && npy->bytes == 8) {
        memcpy(value, &bits, sizeof(*value));
    } else if (npy->kind == 'f' && npy->bytes == 4) {
        float single;
        uint32_t low = (uint32_t)bits;
        memcpy(&single, &low, sizeof(single));
        *value = (double)single;
    } else if (npy->kind == 'f') {
        *value = half((uint16_t)bits);
    } else if (npy->kind == 'i') {
        int64_t number = (int64_t)(bits << unused) >> unused;
        *value = (double)number;
        return number >= INT32_MIN && number <= INT32_MAX;
    } else {
        *value = npy->kind == 'b' ? bits != 0 : (double)bits;
        return bits <= INT32_MAX;
    }
    return true;
}

/* Where in the file element i of C order lies. */
static uint64_t place_of(const struct npy *npy, uint64_t i)
{
    uint64_t index[MAX_DIMS], at = 0;
    if (!npy->fortran)
        return i;
    for (unsigned d = npy->n_dims; d-- > 0; i /= npy->shape[d])
        index[d] = i % npy->shape[d];
    for (unsigned d = npy->n_dims; d-- > 0;)
        at = at * npy->shape[d] + index[d];
    return at;
}

static void note(struct cli_masks *masks, double value)
{
    masks->negative = masks->negative || value < 0;
    masks->fractional = masks->fractional || value != floor(value);
    masks->least = fmin(masks->least, value);
    masks->most = fmax(masks->most, value);
}

static bool convert(struct cli_masks *masks, const struct npy *npy, const uint8_t *bytes,
                    double *values, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        if (!element(npy, bytes + place_of(npy, i) * npy->bytes, &values[i]))
            return refuse(npy, "integer weights beyond 32 bits; save it with .astype('f8'), and "
                               "the sums are float64");
        if (!isfinite(values[i]))
            return refuse(npy, "weights that are infinite or not numbers");
        note(masks, values[i]);
    }
    return true;
}

/* ---- files ---------------------------------------------------------------------------------------- */

static bool check_shape(const struct npy *npy, const uint64_t detector[2], uint64_t *n_masks)
{
    char text[96] = "";
    size_t used = 0;
    unsigned n = npy->n_dims;
    *n_masks = n == 3 ? npy->shape[0] : 1;
    if (n >= 2 && npy->shape[n - 2] == detector[0] && npy->shape[n - 1] == detector[1] && *n_masks)
        return true;
    for (unsigned i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, sizeof(text) - used, i ? ", %llu" : "%llu",
                                 (unsigned long long)npy->shape[i]);
    cli_failed("%s: a mask of shape (%s%s), and the detector is (%llu, %llu)", npy->path, text,
               n == 1 ? "," : "", (unsigned long long)detector[0], (unsigned long long)detector[1]);
    return false;
}

static bool read_elements(struct cli_masks *masks, const struct npy *npy, uint64_t n_pixels,
                          uint64_t n_masks)
{
    uint64_t n = n_pixels * n_masks;
    uint8_t *bytes = malloc(n * npy->bytes + 1);
    double *values = realloc(masks->values, (masks->n * n_pixels + n) * sizeof(*values));
    if (values)
        masks->values = values;
    bool ok = bytes && values;
    if (!ok)
        cli_failed("no memory for the masks of %s", npy->path);
    if (ok && n && fread(bytes, n * npy->bytes, 1, npy->file) != 1)
        ok = refuse(npy, "the file ends before its array does");
    ok = ok && convert(masks, npy, bytes, values + masks->n * n_pixels, n);
    free(bytes);
    if (ok)
        masks->n += n_masks;
    return ok;
}

bool cli_masks_read(struct cli_masks *masks, const char *path, const uint64_t detector[2],
                    size_t max)
{
    struct npy npy = {.file = fopen(path, "rbe"), .path = path};
    uint64_t n_masks;
    if (!npy.file) {
        cli_failed("%s: %s", path, strerror(errno));
        return false;
    }
    bool ok = read_header(&npy) && check_shape(&npy, detector, &n_masks);
    if (ok && n_masks > max - masks->n) {
        cli_failed("%s: %llu masks, and %zu are the most that go at once", path,
                   (unsigned long long)n_masks, max);
        ok = false;
    }
    ok = ok && read_elements(masks, &npy, detector[0] * detector[1], n_masks);
    fclose(npy.file);
    return ok;
}

void *cli_masks_pack(const struct cli_masks *masks, const uint64_t detector[2],
                     enum stow_weights *weights)
{
    size_t n = masks->n * detector[0] * detector[1];
    bool whole = !masks->fractional && masks->least >= INT32_MIN && masks->most <= INT32_MAX;
    *weights = !whole                                       ? STOW_WEIGHTS_F64
               : masks->negative || masks->most > UINT8_MAX ? STOW_WEIGHTS_I32
                                                            : STOW_WEIGHTS_U8;
    void *packed = malloc(n * sizeof(double) + 1);
    for (size_t i = 0; packed && i < n; i++) {
        if (*weights == STOW_WEIGHTS_U8)
            ((uint8_t *)packed)[i] = (uint8_t)masks->values[i];
        else if (*weights == STOW_WEIGHTS_I32)
            ((int32_t *)packed)[i] = (int32_t)masks->values[i];
        else
            ((double *)packed)[i] = masks->values[i];
    }
    return packed;
}

void cli_masks_free(struct cli_masks *masks)
{
    free(masks->values);
    masks->values = NULL;
    masks->n = 0;
}
