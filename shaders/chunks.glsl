// Chunks of 16 bytes, CHUNK elements each, that do not begin or end where aligned ones do.

// The chunk that begins at element `first` of the chunk lo and goes on in hi.
uvec4 shifted(uvec4 lo, uvec4 hi, int first) {
    uint bytes = uint(first) * (16 / CHUNK), bits = bytes % 4u * 8u;
    bool two = (bytes & 8u) != 0u, one = (bytes & 4u) != 0u;
    uint w[8] = uint[8](lo.x, lo.y, lo.z, lo.w, hi.x, hi.y, hi.z, hi.w);
    [[unroll]] for (int i = 0; i < 6; i++) w[i] = two ? w[i + 2] : w[i];
    [[unroll]] for (int i = 0; i < 5; i++) w[i] = one ? w[i + 1] : w[i];
    uvec4 x;
    [[unroll]] for (int i = 0; i < 4; i++) x[i] = (w[i] >> bits) | ((w[i + 1] << 1) << (31u - bits));
    return x;
}

// The first `count` elements of a chunk, zeros after them.
uvec4 first_of(uvec4 x, int count) {
    int bits = count * (128 / CHUNK);
    [[unroll]] for (int i = 0; i < 4; i++) {
        int kept = bits - 32 * i;
        x[i] = kept >= 32 ? x[i] : kept > 0 ? x[i] & ((1u << kept) - 1u) : 0u;
    }
    return x;
}
