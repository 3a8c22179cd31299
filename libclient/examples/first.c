/* Load an acquisition, stream it, print the FNV-1a hash of its frames: first FILE_master.h5 */
#include <framestow.h>
#include <stdio.h>

int main(int argc, char **argv)
{
    struct stow_error err;
    struct stow_client *client = stow_connect(NULL, &err);
    struct stow_info *info = NULL;
    if (!client || stow_load(client, argc > 1 ? argv[1] : "", NULL, &info))
        return fprintf(stderr, "%s\n", client ? stow_last_error(client)->text : err.text), 1;
    struct stow_stream_options options = {.size = sizeof(options), .memory = STOW_HOST_FD};
    struct stow_stream *stream = stow_stream_open(client, info->name, &options);
    const struct stow_batch *batch;
    unsigned long long frames = 0, hash = 0xcbf29ce484222325;
    for (; stream && stow_stream_next(stream, &batch, -1) > 0; stow_stream_release(stream, batch)) {
        const unsigned char *pixels = batch->data; /* in a slot of the daemon's, mapped here */
        for (size_t i = 0; i < batch->bytes; i++)
            hash = (hash ^ pixels[i]) * 0x100000001b3;
        frames += batch->n_frames;
    }
    printf("%016llx %llu frames. %s\n", hash, frames, stow_last_error(client)->text);
    stow_info_free(info);
    stow_close(client); /* closes the stream too */
}
