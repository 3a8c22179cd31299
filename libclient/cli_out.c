/* SPDX-License-Identifier: Apache-2.0 */
#include "cli_out.h"
#include "cli.h"
#include "cli_picture.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <png.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define NPY_HEADER 192u /* a multiple of 64, with room for any shape: it is written last */

struct cli_out {
    char *path;
    char *dtype;
    FILE *file;
    uint64_t detector[2];
    uint64_t elem_bytes, frame_bytes;
    uint64_t bytes; /* of frames so far */
    bool picture;
};

/* Of the file being written, for the signal handler. */
static char temporary[4096];

bool cli_out_known(const char *path, bool *picture)
{
    const char *dot = strrchr(path, '.');
    *picture = dot && strcmp(dot, ".png") == 0;
    return dot && (*picture || strcmp(dot, ".npy") == 0);
}

static void on_signal(int number)
{
    unlink(temporary);
    signal(number, SIG_DFL);
    raise(number);
}

static void watch_signals(bool on)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action = {.sa_handler = on ? on_signal : SIG_DFL};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        sigaction(numbers[i], &action, NULL);
}

static FILE *open_temporary(const char *path)
{
    const char *slash = strrchr(path, '/');
    int folder = slash ? (int)(slash - path) + 1 : 0;
    if (snprintf(temporary, sizeof(temporary), "%.*s.framestow-XXXXXX", folder, path) >=
        (int)sizeof(temporary)) {
        errno = ENAMETOOLONG;
        return NULL;
    }
    int fd = mkostemp(temporary, O_CLOEXEC);
    if (fd < 0)
        return NULL;
    watch_signals(true);
    mode_t mask = umask(0);
    umask(mask);
    fchmod(fd, 0666 & ~mask);
    return fdopen(fd, "w+");
}

/* Of a dtype as numpy writes it: u1, f4. */
static uint64_t bytes_of(const char *dtype)
{
    return dtype[0] && dtype[1] >= '0' && dtype[1] <= '9' ? (uint64_t)(dtype[1] - '0') : 0;
}

struct cli_out *cli_out_open(const char *path, const char *dtype, const uint64_t frame[2])
{
    bool picture;
    const uint64_t elem_bytes = bytes_of(dtype);
    if (cli_out_known(path, &picture) && picture && strcmp(dtype, "f2") == 0) {
        cli_failed("%s: there are no pictures of f2: ask for f4", path);
        return NULL;
    }
    struct cli_out *out = calloc(1, sizeof(*out));
    if (!out || !(out->path = strdup(path)) || !(out->dtype = strdup(dtype))) {
        cli_failed("no memory to write %s", path);
        cli_out_drop(out);
        return NULL;
    }
    out->picture = picture;
    out->detector[0] = frame[0];
    out->detector[1] = frame[1];
    out->elem_bytes = elem_bytes;
    out->frame_bytes = frame[0] * frame[1] * elem_bytes;
    out->file = open_temporary(path);
    if (!out->file || (!out->picture && fseek(out->file, NPY_HEADER, SEEK_SET))) {
        cli_failed("writing %s: %s", path, strerror(errno));
        cli_out_drop(out);
        return NULL;
    }
    return out;
}

/* A picture's pixels wait in the file too, and are read back. */
bool cli_out_write(struct cli_out *out, const void *frames, size_t bytes)
{
    out->bytes += bytes;
    if (bytes == 0 || fwrite(frames, bytes, 1, out->file) == 1)
        return true;
    cli_failed("writing %s: %s", out->path, strerror(errno));
    return false;
}

/* numpy's format 1.0: magic, version, u16 length of the text, the text, padded by blanks to a
 * line's end. */
static bool write_npy_header(struct cli_out *out)
{
    char header[NPY_HEADER + 1];
    uint64_t frames = out->frame_bytes ? out->bytes / out->frame_bytes : 0;
    int n = snprintf(
        header, sizeof(header),
        "\x93NUMPY%c%c%c%c{'descr': '%c%s', 'fortran_order': False, 'shape': (%llu, %llu, %llu), }",
        1, 0, (int)(NPY_HEADER - 10), 0, out->elem_bytes > 1 ? '<' : '|', out->dtype,
        (unsigned long long)frames, (unsigned long long)out->detector[0],
        (unsigned long long)out->detector[1]);
    if (n < 0 || n >= (int)NPY_HEADER)
        return false;
    memset(header + n, ' ', NPY_HEADER - (unsigned)n);
    header[NPY_HEADER - 1] = '\n';
    return fseek(out->file, 0, SEEK_SET) == 0 && fwrite(header, NPY_HEADER, 1, out->file) == 1;
}

/* ---- the picture ----------------------------------------------------------------------------- */

/* The value of pixel i; NAN: it has none that is a count, and is white. An unsigned detector marks those by the
 * greatest value of the type. */
static double pixel(const uint8_t *frame, const char *dtype, uint64_t elem_bytes, uint64_t i)
{
    const uint8_t *at = frame + i * elem_bytes;
    const unsigned unused = 64 - 8 * (unsigned)elem_bytes;
    uint64_t bits = 0;
    double real;
    float single;
    for (uint64_t b = elem_bytes; b-- > 0;)
        bits = bits << 8 | at[b];
    if (dtype[0] == 'i')
        return (double)((int64_t)(bits << unused) >> unused);
    if (dtype[0] == 'u')
        return bits == UINT64_MAX >> unused ? NAN : (double)bits;
    if (elem_bytes == sizeof(single)) {
        memcpy(&single, at, sizeof(single));
        return (double)single;
    }
    memcpy(&real, at, sizeof(real));
    return real;
}

/* Counts as grey, in place over the first bytes of the frame. */
static void to_grey(uint8_t *frame, const char *dtype, uint64_t elem_bytes, uint64_t n)
{
    double least = INFINITY, most = -INFINITY;
    for (uint64_t i = 0; i < n; i++) {
        double value = pixel(frame, dtype, elem_bytes, i);
        least = isfinite(value) && value < least ? value : least;
        most = isfinite(value) && value > most ? value : most;
    }
    for (uint64_t i = 0; i < n; i++) {
        double value = pixel(frame, dtype, elem_bytes, i);
        /* Halves, since the range of floats may be over the largest. */
        double part = (value / 2 - least / 2) / (most / 2 - least / 2);
        frame[i] = isnan(value)      ? 255
                   : !(most > least) ? 0
                                     : (uint8_t)(255 * fmin(fmax(part, 0), 1) + 0.5);
    }
}

/* libpng says what is wrong by longjmp, so nothing here may own anything. */
static bool encode_png(FILE *file, png_structp png, png_infop header, const uint8_t *grey,
                       uint32_t width, uint32_t height)
{
    if (setjmp(png_jmpbuf(png)))
        return false;
    png_init_io(png, file);
    png_set_IHDR(png, header, width, height, 8, PNG_COLOR_TYPE_GRAY, PNG_INTERLACE_NONE,
                 PNG_COMPRESSION_TYPE_DEFAULT, PNG_FILTER_TYPE_DEFAULT);
    png_write_info(png, header);
    for (uint32_t y = 0; y < height; y++)
        png_write_row(png, grey + (size_t)y * width);
    png_write_end(png, header);
    return true;
}

static bool write_png(struct cli_out *out)
{
    bool ok = false;
    uint64_t n = out->detector[0] * out->detector[1];
    uint8_t *frame = malloc(out->frame_bytes);
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop header = png ? png_create_info_struct(png) : NULL;
    if (out->bytes != out->frame_bytes) {
        errno = ENOTSUP;
    } else if (frame && header && fseek(out->file, 0, SEEK_SET) == 0 &&
               fread(frame, out->frame_bytes, 1, out->file) == 1 &&
               fseek(out->file, 0, SEEK_SET) == 0 && ftruncate(fileno(out->file), 0) == 0) {
        to_grey(frame, out->dtype, out->elem_bytes, n);
        ok = encode_png(out->file, png, header, frame, (uint32_t)out->detector[1],
                        (uint32_t)out->detector[0]);
    }
    png_destroy_write_struct(&png, &header);
    free(frame);
    return ok;
}

/* ---- an array at once ------------------------------------------------------------------------- */

static bool write_array(FILE *file, const struct cli_array *array)
{
    char header[NPY_HEADER + 1];
    uint64_t n = 1;
    int at =
        snprintf(header, sizeof(header),
                 "\x93NUMPY%c%c%c%c{'descr': '%c%s', 'fortran_order': False, 'shape': (", 1, 0,
                 (int)(NPY_HEADER - 10), 0, bytes_of(array->dtype) > 1 ? '<' : '|', array->dtype);
    for (unsigned i = 0; i < array->n_dims; i++) {
        n *= array->shape[i];
        at += snprintf(header + at, sizeof(header) - (size_t)at, "%llu, ",
                       (unsigned long long)array->shape[i]);
    }
    at += snprintf(header + at, sizeof(header) - (size_t)at, "), }");
    memset(header + at, ' ', NPY_HEADER - (unsigned)at);
    header[NPY_HEADER - 1] = '\n';
    return fwrite(header, NPY_HEADER, 1, file) == 1 &&
           (n == 0 || fwrite(array->values, bytes_of(array->dtype) * n, 1, file) == 1);
}

static bool write_picture(FILE *file, const struct cli_array *array)
{
    struct cli_picture picture;
    bool drawn = cli_picture_draw(&picture, array);
    png_structp png = png_create_write_struct(PNG_LIBPNG_VER_STRING, NULL, NULL, NULL);
    png_infop header = png ? png_create_info_struct(png) : NULL;
    bool ok = drawn && header &&
              encode_png(file, png, header, picture.grey, picture.width, picture.height);
    png_destroy_write_struct(&png, &header);
    cli_picture_free(&picture);
    return ok;
}

bool cli_out_array(const char *path, const struct cli_array *array)
{
    bool picture;
    cli_out_known(path, &picture);
    if (picture && !cli_picture_fits(array)) {
        cli_failed("%s: a picture has two dimensions of up to %u pixels; write this one as .npy",
                   path, CLI_PICTURE_MAX);
        return false;
    }
    FILE *file = open_temporary(path);
    if (file)
        errno = 0;
    bool ok = file && (picture ? write_picture(file, array) : write_array(file, array)) &&
              fflush(file) == 0 && rename(temporary, path) == 0;
    if (!ok)
        cli_failed("writing %s: %s", path, strerror(errno ? errno : EIO));
    if (file) {
        if (!ok)
            unlink(temporary);
        watch_signals(false);
        fclose(file);
    }
    temporary[0] = 0;
    return ok;
}

/* ---- the end --------------------------------------------------------------------------------- */

bool cli_out_publish(struct cli_out *out)
{
    if (out->picture && out->bytes != out->frame_bytes) {
        cli_failed("%s: there is no good frame to draw", out->path);
        cli_out_drop(out);
        return false;
    }
    errno = 0;
    bool ok = out->picture ? write_png(out) : write_npy_header(out);
    ok = ok && fflush(out->file) == 0 && rename(temporary, out->path) == 0;
    if (ok)
        temporary[0] = 0;
    else
        cli_failed("writing %s: %s", out->path, strerror(errno ? errno : EIO));
    cli_out_drop(out);
    return ok;
}

void cli_out_drop(struct cli_out *out)
{
    if (!out)
        return;
    if (out->file) {
        if (temporary[0])
            unlink(temporary);
        watch_signals(false);
        fclose(out->file);
    }
    temporary[0] = 0;
    free(out->path);
    free(out->dtype);
    free(out);
}
