/* SPDX-License-Identifier: Apache-2.0 */
#include "reader_file.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

/* File format specification III, "Disk Format: Level 0": superblock versions 0 to 3. */
static const uint8_t signature[8] = {0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n'};
#define SUPERBLOCK_BYTES \
    64 /* enough for the end-of-file address of any version with 8-byte addresses */
#define FLAG_WRITER 1u
#define FLAG_SWMR 4u

struct superblock {
    uint64_t at;
    unsigned version, offset_bytes, length_bytes, flags;
    bool has_eof;
    uint64_t eof; /* bytes that the file should have */
};

void reader_file_show(struct reader_file *file, const char *path)
{
    size_t bytes = strlen(path);
    bool whole = bytes < sizeof(file->shown);
    snprintf(file->shown, sizeof(file->shown), "%s%s", whole ? "" : "...",
             whole ? path : path + bytes - (sizeof(file->shown) - 4));
}

static herr_t keep_first(unsigned n, const H5E_error2_t *error, void *data)
{
    if (n == 0)
        snprintf(data, 160, "%s", error->desc ? error->desc : "");
    return 0;
}

const char *reader_file_reason(void)
{
    static char text[160];
    text[0] = '\0';
    H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, keep_first, text);
    return text[0] ? text : "HDF5 gives no reason";
}

static uint64_t little(const uint8_t *at, unsigned bytes)
{
    uint64_t value = 0;
    for (unsigned i = 0; i < bytes; i++)
        value |= (uint64_t)at[i] << (8 * i);
    return value;
}

static bool good_width(unsigned bytes)
{
    return bytes == 2 || bytes == 4 || bytes == 8;
}

/* Where the signature is: at 0, 512, 1024, 2048, ... False: nowhere. */
static bool find_signature(struct reader_file *file, uint64_t *at)
{
    uint8_t got[sizeof(signature)];
    for (uint64_t place = 0; place < file->io.size; place = place ? 2 * place : 512) {
        if (file->io.size - place < sizeof(got) ||
            !reader_fd_read(&file->io, place, got, sizeof(got)))
            return false;
        if (memcmp(got, signature, sizeof(got)) == 0) {
            *at = place;
            return true;
        }
    }
    return false;
}

/* False when the file ends before its superblock does, or the version is none we know. */
static bool parse_superblock(struct reader_file *file, struct superblock *super)
{
    uint8_t b[SUPERBLOCK_BYTES + 32] = {0};
    uint64_t left = file->io.size - super->at;
    size_t have = left < sizeof(b) ? (size_t)left : sizeof(b);
    if (have < 16 || !reader_fd_read(&file->io, super->at, b, have))
        return false;
    super->version = b[8];
    bool old = super->version < 2;
    super->offset_bytes = old ? b[13] : b[9];
    super->length_bytes = old ? b[14] : b[10];
    super->flags = super->version == 3 ? b[11] : 0;
    if (super->version > 3 || !good_width(super->offset_bytes) || !good_width(super->length_bytes))
        return false;
    unsigned w = super->offset_bytes;
    unsigned base_at = super->version == 0 ? 24 : super->version == 1 ? 28 : 12;
    unsigned eof_at = base_at + 2 * w; /* free-space index, or extension, in between */
    if (have < eof_at + w)
        return false;
    /* A file that was put behind a block of other bytes later keeps its old base: HDF5 shifts
     * the end. */
    uint64_t base = little(b + base_at, w), eof = little(b + eof_at, w);
    super->has_eof = eof >= base;
    super->eof = eof - base + super->at;
    return true;
}

/* STOW_SOURCE unless the file is all there and nobody has it open for writing. */
static int check_superblock(struct reader_file *file, struct superblock *super,
                            struct stow_error *err)
{
    uint64_t size = file->io.size;
    if (size == 0)
        return error_set(err, STOW_SOURCE, "%s is empty (0 bytes); copy it again", file->shown);
    file->io.errno_value = 0;
    if (!find_signature(file, &super->at)) {
        if (file->io.errno_value)
            return error_errno(err, file->io.errno_value, "%s: cannot be read", file->shown);
        return error_set(err, STOW_SOURCE,
                         "%s is not an HDF5 file: no HDF5 signature in its %" PRIu64 " bytes",
                         file->shown, size);
    }
    if (!parse_superblock(file, super))
        return error_set(err, STOW_SOURCE,
                         "%s is cut short or damaged: the %" PRIu64
                         " bytes that are here have no whole HDF5 superblock; copy it again",
                         file->shown, size);
    if ((super->flags & FLAG_WRITER) && !(super->flags & FLAG_SWMR)) {
        bool locked = flock(file->io.fd, LOCK_SH | LOCK_NB) < 0;
        if (!locked)
            flock(file->io.fd, LOCK_UN);
        return locked ? error_set(err, STOW_SOURCE,
                                  "%s is being written: another process has it locked; load it "
                                  "when its writer has closed it",
                                  file->shown)
                      : error_set(err, STOW_SOURCE,
                                  "%s has the flag of an open writer; if no program is writing it "
                                  "any more, run `h5clear -s FILE` on a copy and load that",
                                  file->shown);
    }
    if (super->has_eof && super->eof > size && !(super->flags & FLAG_WRITER))
        return error_set(err, STOW_SOURCE,
                         "%s is cut short: %" PRIu64 " bytes are here, %" PRIu64
                         " were written; copy it again",
                         file->shown, size, super->eof);
    return 0;
}

int reader_file_open(struct reader_file *file, struct stow_error *err)
{
    struct superblock super = {0};
    int status = check_superblock(file, &super, err);
    if (status)
        return status;
    file->base = super.at;
    file->offset_bytes = super.offset_bytes;
    file->length_bytes = super.length_bytes;
    file->swmr = (super.flags & FLAG_SWMR) != 0;
    file->io.errno_value = 0;
    file->hid =
        reader_fd_open(&file->io, file->swmr ? H5F_ACC_RDONLY | H5F_ACC_SWMR_READ : H5F_ACC_RDONLY);
    if (file->hid >= 0)
        return 0;
    if (file->io.errno_value)
        return error_errno(err, file->io.errno_value, "%s: its HDF5 structure cannot be read",
                           file->shown);
    return error_set(err, STOW_SOURCE,
                     "%s: HDF5 cannot open it (%s); it may be damaged: copy it again or check it "
                     "with h5dump",
                     file->shown, reader_file_reason());
}

void reader_file_shut(struct reader_file *file)
{
    if (file->hid >= 0)
        H5Fclose(file->hid);
    file->hid = H5I_INVALID_HID;
    if (file->io.fd >= 0)
        close(file->io.fd);
    file->io.fd = -1;
}
