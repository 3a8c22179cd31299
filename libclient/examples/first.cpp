// Load an acquisition, stream it, print the FNV-1a hash of its frames: first FILE_master.h5
#include <cstdio>
#include <framestow.h>
#include <vector>

int main(int argc, char **argv)
{
    stow_error err;
    stow_client *client = stow_connect(nullptr, &err);
    struct stow_info *info = nullptr;
    if (!client || stow_load(client, argc > 1 ? argv[1] : "", nullptr, &info))
        return std::fprintf(stderr, "%s\n", client ? stow_last_error(client)->text : err.text), 1;
    stow_stream *stream = stow_stream_open(client, info->name, nullptr);
    const stow_batch *batch;
    unsigned long long frames = 0, hash = 0xcbf29ce484222325;
    for (; stream && stow_stream_next(stream, &batch, -1) > 0; stow_stream_release(stream, batch)) {
        std::vector<unsigned char> pixels(batch->bytes); // the batch itself may lie on a GPU
        stow_stream_copy(stream, batch, pixels.data(), pixels.size());
        for (unsigned char byte : pixels)
            hash = (hash ^ byte) * 0x100000001b3;
        frames += batch->n_frames;
    }
    std::printf("%016llx %llu frames. %s\n", hash, frames, stow_last_error(client)->text);
    stow_info_free(info);
    stow_close(client);
}
