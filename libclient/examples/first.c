/* Load an acquisition, stream it, print the FNV-1a hash of its frames: first FILE_master.h5 */
#include <framestow.h>
#include <stdio.h>
#include <stdlib.h>

int main(int argc, char **argv)
{
    struct stow_error err;
    struct stow_client *client = stow_connect(NULL, &err);
    struct stow_info *info = NULL;
    if (!client || stow_load(client, argc > 1 ? argv[1] : "", NULL, &info))
        return fprintf(stderr, "%s\n", client ? stow_last_error(client)->text : err.text), 1;
    struct stow_stream *stream = stow_stream_open(client, info->name, NULL);
    const struct stow_batch *batch;
    unsigned long long frames = 0, hash = 0xcbf29ce484222325;
    for (; stream && stow_stream_next(stream, &batch, -1) > 0; stow_stream_release(stream, batch)) {
        unsigned char *pixels = malloc(batch->bytes); /* the batch itself may lie on a GPU */
        stow_stream_copy(stream, batch, pixels, batch->bytes);
        for (size_t i = 0; i < batch->bytes; i++)
            hash = (hash ^ pixels[i]) * 0x100000001b3;
        frames += batch->n_frames;
        free(pixels);
    }
    printf("%016llx %llu frames. %s\n", hash, frames, stow_last_error(client)->text);
    stow_close(client); /* closes the stream too */
}
