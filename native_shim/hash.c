// A fast 128-bit content hash, to share equal weights. Not a defence against forged collisions: weights come from one user.
// Two lanes of multiply-and-fold steps (the idea of wyhash by Wang Yi), each over all of the data with its own constants.
#include <string.h>

#include "onnx_vulkan.h"

static uint64_t fold(uint64_t a, uint64_t b) {
    unsigned __int128 p = (unsigned __int128)a * b;
    return (uint64_t)p ^ (uint64_t)(p >> 64);
}

void ov_hash128(const void *data, uint64_t size, uint64_t out[2]) {
    static const uint64_t K[] = {0x9e3779b97f4a7c15, 0xbf58476d1ce4e5b9, 0x94d049bb133111eb, 0xd6e8feb86659fd93,
                                 0xa0761d6478bd642f, 0xe7037ed1a0b428db, 0x8ebc6af09c88c6e3, 0x589965cc75374cc3};
    const uint8_t *p = data;
    uint64_t h[4] = {K[0] ^ size, K[1], K[2] + size, K[3]};
    for (uint64_t left = size; left;) {
        uint64_t w[4] = {0}, n = 32;
        if (left >= 32) memcpy(w, p, 32); // of a fixed size, so that it is four loads and no call
        else memcpy(w, p, n = left);
        h[0] = fold(h[0] ^ w[0] ^ K[4], w[1] ^ K[5]) + w[0];
        h[1] = fold(h[1] ^ w[2] ^ K[6], w[3] ^ K[7]) + w[2];
        h[2] = fold(h[2] ^ w[1] ^ K[6], w[2] ^ K[4]) + w[3];
        h[3] = fold(h[3] ^ w[3] ^ K[5], w[0] ^ K[7]) + w[1];
        p += n, left -= n;
    }
    out[0] = fold(fold(h[0] ^ K[4], h[1] ^ K[5]) ^ K[0], size ^ h[2] ^ K[1]);
    out[1] = fold(fold(h[2] ^ K[6], h[3] ^ K[7]) ^ K[2], size ^ h[0] ^ K[3]);
}
