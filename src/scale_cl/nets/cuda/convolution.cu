// Images are [n, h, w, c] with channels last, weights [out, ky, kx, in]. Products are taken in TF32 (round to nearest),
// sums in fp32 and in a fixed order: the same bits every time.

struct Conv {
    int n, in_h, in_w, in_c, out_h, out_w, out_c, kernel, stride, pad;
};

// ---- forward, and the gradient of the input ------------------------------------------------------------------------
// Both are out[m, j] = sum over taps t and channels c of src[pixel(m, t), c] * weight(t, c, j), where m runs over
// pixels. A tile is BM pixels times BN channels; K = (tap, channel) goes by in chunks of 40 a warp along K.

template <int BN, int WK, bool PAIR, bool FORWARD>  // PAIR: 20 channels, so that a chunk is two taps
__device__ void gather(const float* src, const float* weight, float* out, Conv s) {
    constexpr int WM = 4 / WK, BM = 16 * WM, KC = 40 * WK, QUADS = KC / 4, NT = BN / 8;
    constexpr int SA = KC + 4, SB = FORWARD ? KC + 4 : BN, ROWS_B = FORWARD ? BN : KC, ROW_B = FORWARD ? QUADS : BN / 4;
    constexpr int SIZE_A = BM * SA, SIZE_B = ROWS_B * SB, SLOTS = (ROWS_B * ROW_B + 127) / 128;
    __shared__ __align__(16) float tiles[2 * (SIZE_A + SIZE_B)];
    __shared__ int tap_y[10], tap_x[10], tap_w[10];

    const int c_src = PAIR ? 20 : FORWARD ? s.in_c : s.out_c, c_out = FORWARD ? s.out_c : s.in_c;
    const int src_h = FORWARD ? s.in_h : s.out_h, src_w = FORWARD ? s.in_w : s.out_w;
    const int to_h = FORWARD ? s.out_h : s.in_h, to_w = FORWARD ? s.out_w : s.in_w;
    // With stride 2 the input's pixels fall in four classes by parity; each meets taps of its own.
    const int step = FORWARD ? 1 : s.stride, times = FORWARD ? s.stride : 1;
    const int py = blockIdx.z / step, px = blockIdx.z % step;
    const int grid_h = (to_h - py + step - 1) / step, grid_w = (to_w - px + step - 1) / step;
    const int rows = s.n * grid_h * grid_w, first = blockIdx.x * BM, j0 = blockIdx.y * BN;
    const int width = c_out < BN ? c_out : BN;  // of this tile: 20 in one of 24
    if (first >= rows) return;

    int taps = 0;
    for (int ky = 0; ky < s.kernel; ++ky)
        for (int kx = 0; kx < s.kernel; ++kx) {
            int y = FORWARD ? ky - s.pad : py + s.pad - ky, x = FORWARD ? kx - s.pad : px + s.pad - kx;
            if (!FORWARD && ((y | x) & (step - 1))) continue;
            if (threadIdx.x == 0) {
                tap_y[taps] = FORWARD ? y : y / step;
                tap_x[taps] = FORWARD ? x : x / step;
                tap_w[taps] = (ky * s.kernel + kx) * (FORWARD ? c_src : c_out);
            }
            ++taps;
        }
    __syncthreads();
    const int chunks = PAIR ? (taps + 1) / 2 : taps * (c_src / KC);

    constexpr int A_ROW = 128 / BM;  // threads that fill a row of A
    const int row = threadIdx.x / A_ROW, q0 = threadIdx.x % A_ROW, m = first + row;
    int image = 0, y0 = -4 * src_h - 4, x0 = 0;  // a row past the end lies outside every image
    if (m < rows) {
        image = m / (grid_h * grid_w);
        int rest = m - image * grid_h * grid_w, y = rest / grid_w;
        y0 = y * times;
        x0 = (rest - y * grid_w) * times;
    }
    const float* image_at = src + (long long)image * src_h * src_w * c_src;
    const int k2 = s.kernel * s.kernel;
    int from_b[SLOTS], to_b[SLOTS];  // where this thread's pieces of B come from (but for the tap) and go to
    #pragma unroll
    for (int i = 0; i < SLOTS; ++i) {
        int at = threadIdx.x + 128 * i, r = at / ROW_B, q = at - r * ROW_B;
        bool exists = r < ROWS_B && (FORWARD ? r : 4 * q) < width;
        int k = FORWARD ? 4 * q : r, half = PAIR && k >= 20, c = k - 20 * half;
        from_b[i] = !exists ? -1 : FORWARD ? (j0 + r) * k2 * c_src + c : c * k2 * c_out + j0 + 4 * q;
        to_b[i] = r < ROWS_B ? 2 * (r * SB + 4 * q) + half : -1;
    }

    int tap = 0, c0 = 0;  // of the next chunk
    auto load = [&](int stage) {
        float* a = tiles + stage * (SIZE_A + SIZE_B) + row * SA;
        float* b = tiles + stage * (SIZE_A + SIZE_B) + SIZE_A;
        #pragma unroll
        for (int half = 0; half < (PAIR ? 2 : 1); ++half) {
            bool inside = !PAIR || tap + half < taps;
            int y = y0 + tap_y[tap + half], x = x0 + tap_x[tap + half];
            inside = inside && y >= 0 && y < src_h && x >= 0 && x < src_w;
            const float* from = inside ? image_at + (long long)(y * src_w + x) * c_src + c0 : src;
            for (int q = q0; q < (PAIR ? 5 : QUADS); q += A_ROW)
                copy16(a + 20 * half + 4 * q, inside ? from + 4 * q : src, inside);
        }
        #pragma unroll
        for (int i = 0; i < SLOTS; ++i) {
            if (to_b[i] < 0) continue;
            int half = to_b[i] & 1;
            bool inside = from_b[i] >= 0 && (!PAIR || tap + half < taps);
            int at = from_b[i] + tap_w[tap + half] + c0 * (FORWARD ? 1 : k2 * c_out);
            copy16(b + (to_b[i] >> 1), inside ? weight + at : weight, inside);
        }
        commit();
        if (PAIR) tap += 2;
        else if ((c0 += KC) == c_src) c0 = 0, ++tap;
    };

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int wm = warp % WM, wk = warp / WM;
    float acc[NT][4];
    #pragma unroll
    for (int n = 0; n < NT; ++n)
        for (int i = 0; i < 4; ++i) acc[n][i] = 0.f;

    if (chunks > 0) load(0);
    for (int chunk = 0; chunk < chunks; ++chunk) {
        if (chunk + 1 < chunks) load((chunk + 1) & 1);
        else commit();
        wait_for_older();
        __syncthreads();
        const float* a = tiles + (chunk & 1) * (SIZE_A + SIZE_B);
        const float* b = a + SIZE_A;
        a += (wm * 16 + g) * SA + wk * 40 + t;
        b += FORWARD ? g * SB + wk * 40 + t : (wk * 40 + t) * SB + g;
        #pragma unroll
        for (int k = 0; k < 40; k += 8) {
            unsigned fa[4] = {tf32(a[k]), tf32(a[8 * SA + k]), tf32(a[k + 4]), tf32(a[8 * SA + k + 4])};
            #pragma unroll
            for (int n = 0; n < NT; ++n) {
                const float* at = FORWARD ? b + 8 * n * SB + k : b + k * SB + 8 * n;
                mma(acc[n], fa, tf32(at[0]), tf32(at[FORWARD ? 4 : 4 * SB]));
            }
        }
        __syncthreads();
    }

    if (WK > 1) {  // the warps along K add up, in order
        float* shared = tiles;
        for (int other = 1; other < WK; ++other) {
            if (wk == other)
                for (int n = 0; n < NT; ++n)
                    for (int i = 0; i < 4; ++i) shared[((wm * NT + n) * 4 + i) * 32 + lane] = acc[n][i];
            __syncthreads();
            if (wk == 0)
                for (int n = 0; n < NT; ++n)
                    for (int i = 0; i < 4; ++i) acc[n][i] += shared[((wm * NT + n) * 4 + i) * 32 + lane];
            __syncthreads();
        }
        if (wk != 0) return;
    }
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        int m = first + wm * 16 + g + 8 * half;
        if (m >= rows) continue;
        long long pixel = m;
        if (step > 1) {
            int image = m / (grid_h * grid_w), rest = m - image * grid_h * grid_w;
            int y = rest / grid_w, x = rest - y * grid_w;
            pixel = ((long long)image * to_h + y * step + py) * to_w + x * step + px;
        }
        float* to = out + pixel * c_out + j0;
        #pragma unroll
        for (int n = 0; n < NT; ++n)
            if (8 * n + 2 * t < width) store2(to + 8 * n + 2 * t, acc[n][2 * half], acc[n][2 * half + 1]);
    }
}

// ---- the gradient of the weights -----------------------------------------------------------------------------------
// dW[j, ky, kx, c] = sum over pixels p of dy[p, j] * x[pixel(p, ky, kx), c]. A tile is one ky with all its kx, CI input
// and CO output channels; the pixels are dealt out over blockIdx.z, and the last block of a tile adds the parts up.

// Whether this is the last of the blocks along z to come here, with all that the others wrote in sight.
__device__ bool is_last(int* arrived) {
    __shared__ int last;
    fence();
    __syncthreads();
    if (threadIdx.x == 0) {
        last = atomicAdd(arrived, 1) == (int)gridDim.z - 1;
        if (last) *arrived = 0;  // for the next launch
    }
    __syncthreads();
    fence();
    return last;
}

__device__ void add_up(const float* parts, float* to, long long at, long long size) {
    float sum = 0.f;
    #pragma unroll 8
    for (int z = 0; z < (int)gridDim.z; ++z) sum += parts[z * size + at];
    to[at] = sum;
}

template <int CI, int CO, int TAPS>
__device__ void weights(const float* x, const float* dy, float* parts, float* dw, int* arrived, Conv s) {
    constexpr int M = TAPS * CI, MT = (M + 15) / 16, PER = (MT + 3) / 4, NT = (CO + 7) / 8;
    constexpr int SA = (MT * 16 + 31) / 32 * 32 + 8, SB = CO == 20 ? 24 : 40, SIZE_A = 32 * SA, SIZE_B = 32 * SB;
    __shared__ __align__(16) float tiles[2 * (SIZE_A + SIZE_B)];

    const int tiles_i = s.in_c / CI, ky = blockIdx.x / tiles_i, i0 = (blockIdx.x - ky * tiles_i) * CI;
    const int j0 = blockIdx.y * CO, pixels = s.n * s.out_h * s.out_w;
    const int chunks = (pixels + 31) / 32, each = (chunks + gridDim.z - 1) / gridDim.z;
    const int begin = blockIdx.z * each, end = begin + each < chunks ? begin + each : chunks;
    const int r = threadIdx.x / 4, q0 = threadIdx.x % 4;

    auto load = [&](int chunk, int stage) {
        float* a = tiles + stage * (SIZE_A + SIZE_B) + r * SA;
        float* b = tiles + stage * (SIZE_A + SIZE_B) + SIZE_A + r * SB;
        int p = chunk * 32 + r;
        bool there = p < pixels;
        int image = p / (s.out_h * s.out_w), rest = p - image * s.out_h * s.out_w, oy = rest / s.out_w;
        int y = oy * s.stride + ky - s.pad, x0 = (rest - oy * s.out_w) * s.stride - s.pad;
        const float* row = x + (((long long)image * s.in_h + y) * s.in_w + x0) * s.in_c + i0;
        bool in_row = there && y >= 0 && y < s.in_h;
        constexpr int Q = CI / 4;
        for (int q = q0; q < TAPS * Q; q += 4) {
            int kx = q / Q, c = 4 * (q - kx * Q);
            bool inside = in_row && x0 + kx >= 0 && x0 + kx < s.in_w;
            copy16(a + 4 * q, inside ? row + (long long)kx * s.in_c + c : x, inside);
        }
        for (int q = q0; q < CO / 4; q += 4)
            copy16(b + 4 * q, there ? dy + (long long)p * s.out_c + j0 + 4 * q : dy, there);
        commit();
    };

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    float acc[PER][NT][4];
    for (int m = 0; m < PER; ++m)
        for (int n = 0; n < NT; ++n)
            for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.f;
    if (begin < end) load(begin, 0);
    for (int chunk = begin; chunk < end; ++chunk) {
        if (chunk + 1 < end) load(chunk + 1, (chunk + 1 - begin) & 1);
        else commit();
        wait_for_older();
        __syncthreads();
        const float* a = tiles + ((chunk - begin) & 1) * (SIZE_A + SIZE_B);
        const float* b = a + SIZE_A + t * SB + g;
        a += t * SA + g;
        #pragma unroll
        for (int k = 0; k < 32; k += 8) {
            unsigned fb[NT][2];
            #pragma unroll
            for (int n = 0; n < NT; ++n) {
                fb[n][0] = tf32(b[k * SB + 8 * n]);
                fb[n][1] = tf32(b[(k + 4) * SB + 8 * n]);
            }
            #pragma unroll
            for (int m = 0; m < PER; ++m) {
                int tile = warp + 4 * m;
                if (MT % 4 && tile >= MT) continue;
                const float* at = a + k * SA + 16 * tile;
                unsigned fa[4] = {tf32(at[0]), tf32(at[8]), tf32(at[4 * SA]), tf32(at[4 * SA + 8])};
                #pragma unroll
                for (int n = 0; n < NT; ++n) mma(acc[m][n], fa, fb[n][0], fb[n][1]);
            }
        }
        __syncthreads();
    }

    const long long size = (long long)s.out_c * s.kernel * s.kernel * s.in_c;
    float* to = gridDim.z == 1 ? dw : parts + blockIdx.z * size;
    #pragma unroll
    for (int m = 0; m < PER; ++m)
        #pragma unroll
        for (int n = 0; n < NT; ++n)
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                int row = (warp + 4 * m) * 16 + g + (i & 2 ? 8 : 0), col = 8 * n + 2 * t + (i & 1);
                if (row < M && col < CO) {
                    int kx = row / CI, c = row - kx * CI;
                    to[((long long)((j0 + col) * s.kernel + ky) * s.kernel + kx) * s.in_c + i0 + c] = acc[m][n][i];
                }
            }
    if (gridDim.z > 1 && is_last(arrived + blockIdx.y * gridDim.x + blockIdx.x))
        for (int i = threadIdx.x; i < M * CO; i += 128) {
            int col = i / M, row = i - col * M, kx = row / CI, c = row - kx * CI;
            add_up(parts, dw, ((long long)((j0 + col) * s.kernel + ky) * s.kernel + kx) * s.in_c + i0 + c, size);
        }
}

// ---- the first layer: 3x3 over colours, stride 1 -------------------------------------------------------------------
// K is all of a pixel's surroundings at once: 27 values, in tiles of 32.

// What a filter sees around pixel p, by two threads.
template <int CI>
__device__ void surroundings(const float* x, int p, float* to, Conv s) {
    int image = p / (s.out_h * s.out_w), rest = p - image * s.out_h * s.out_w, oy = rest / s.out_w;
    int ox = rest - oy * s.out_w;
    const float* corner = x + (((long long)image * s.in_h + oy - 1) * s.in_w + ox - 1) * CI;
    for (int k = threadIdx.x % 2; k < 9 * CI; k += 2) {
        int ky = k / (3 * CI), along = k - ky * 3 * CI, y = oy + ky - 1, column = ox + along / CI - 1;
        bool inside = image < s.n && y >= 0 && y < s.in_h && column >= 0 && column < s.in_w;
        copy4(to + k, inside ? corner + (long long)ky * s.in_w * CI + along : x, inside);
    }
}

template <int CI, int CO>
__device__ void first_forward(const float* x, const float* weight, float* out, Conv s) {
    constexpr int K = 9 * CI, KT = (K + 7) / 8, S = 36, NT = (CO + 7) / 8;
    __shared__ float a[2][64 * S], b[8 * NT * S];
    const int rows = s.n * s.out_h * s.out_w, tiles = (rows + 63) / 64;
    for (int i = threadIdx.x; i < 8 * NT * 8 * KT; i += 128) {
        int j = i / (8 * KT), k = i - j * 8 * KT;
        b[j * S + k] = j < CO && k < K ? weight[j * K + k] : 0.f;
    }
    for (int i = threadIdx.x; i < 128 * (8 * KT - K); i += 128)  // what no tile fills stays zero
        a[i & 1][(i / 2 % 64) * S + K + i / 128] = 0.f;

    const int row = threadIdx.x / 2;
    auto load = [&](int tile, int stage) {
        surroundings<CI>(x, tile * 64 + row, a[stage] + row * S, s);
        commit();
    };

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    if (blockIdx.x < tiles) load(blockIdx.x, 0);
    int stage = 0;
    for (int tile = blockIdx.x; tile < tiles; tile += gridDim.x, stage ^= 1) {
        if (tile + (int)gridDim.x < tiles) load(tile + gridDim.x, stage ^ 1);
        else commit();
        wait_for_older();
        __syncthreads();
        float acc[NT][4] = {};
        const float *at = a[stage] + (16 * warp + g) * S + t, *bt = b + g * S + t;
        #pragma unroll
        for (int k = 0; k < 8 * KT; k += 8) {
            unsigned fa[4] = {tf32(at[k]), tf32(at[8 * S + k]), tf32(at[k + 4]), tf32(at[8 * S + k + 4])};
            #pragma unroll
            for (int n = 0; n < NT; ++n) mma(acc[n], fa, tf32(bt[8 * n * S + k]), tf32(bt[8 * n * S + k + 4]));
        }
        #pragma unroll
        for (int half = 0; half < 2; ++half) {
            int m = tile * 64 + 16 * warp + g + 8 * half;
            #pragma unroll
            for (int n = 0; n < NT; ++n)
                if (m < rows && 8 * n + 2 * t < CO)
                    store2(out + (long long)m * CO + 8 * n + 2 * t, acc[n][2 * half], acc[n][2 * half + 1]);
        }
        __syncthreads();
    }
}

template <int CI, int CO>
__device__ void first_weights(const float* x, const float* dy, float* parts, float* dw, int* arrived, Conv s) {
    constexpr int K = 9 * CI, MT = (K + 15) / 16, NT = (CO + 7) / 8, SA = 40, SB = 24, SIZE_A = 64 * SA;
    constexpr int STAGE = SIZE_A + 64 * SB;
    __shared__ __align__(16) float tiles[2 * STAGE];
    const int pixels = s.n * s.out_h * s.out_w, chunks = (pixels + 63) / 64;
    const int each = (chunks + gridDim.z - 1) / gridDim.z, begin = blockIdx.z * each;
    const int end = begin + each < chunks ? begin + each : chunks, row = threadIdx.x / 2;

    auto load = [&](int chunk, int stage) {
        float *a = tiles + stage * STAGE + row * SA, *b = tiles + stage * STAGE + SIZE_A + row * SB;
        int p = chunk * 64 + row;
        surroundings<CI>(x, p, a, s);
        for (int q = threadIdx.x % 2; q < CO / 4; q += 2)
            copy16(b + 4 * q, p < pixels ? dy + (long long)p * CO + 4 * q : dy, p < pixels);
        commit();
    };

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    float acc[MT][NT][4] = {};
    if (begin < end) load(begin, 0);
    for (int chunk = begin; chunk < end; ++chunk) {
        if (chunk + 1 < end) load(chunk + 1, (chunk + 1 - begin) & 1);
        else commit();
        wait_for_older();
        __syncthreads();
        const float* a = tiles + ((chunk - begin) & 1) * STAGE + (16 * warp + t) * SA + g;  // 16 pixels a warp
        const float* b = tiles + ((chunk - begin) & 1) * STAGE + SIZE_A + (16 * warp + t) * SB + g;
        #pragma unroll
        for (int k = 0; k < 16; k += 8) {
            #pragma unroll
            for (int m = 0; m < MT; ++m) {
                const float* at = a + k * SA + 16 * m;
                unsigned fa[4] = {tf32(at[0]), tf32(at[8]), tf32(at[4 * SA]), tf32(at[4 * SA + 8])};
                #pragma unroll
                for (int n = 0; n < NT; ++n)
                    mma(acc[m][n], fa, tf32(b[k * SB + 8 * n]), tf32(b[(k + 4) * SB + 8 * n]));
            }
        }
        __syncthreads();
    }
    // The warps' sums side by side, then added in order.
    #pragma unroll
    for (int m = 0; m < MT; ++m)
        #pragma unroll
        for (int n = 0; n < NT; ++n)
            #pragma unroll
            for (int i = 0; i < 4; ++i) {
                int row = 16 * m + g + (i & 2 ? 8 : 0), col = 8 * n + 2 * t + (i & 1);
                if (row < K && col < CO) tiles[(warp * CO + col) * K + row] = acc[m][n][i];
            }
    __syncthreads();
    const int size = CO * K;
    float* to = gridDim.z == 1 ? dw : parts + (long long)blockIdx.z * size;
    for (int i = threadIdx.x; i < size; i += 128)
        to[i] = tiles[i] + tiles[size + i] + tiles[2 * size + i] + tiles[3 * size + i];
    if (gridDim.z > 1 && is_last(arrived))
        for (int i = threadIdx.x; i < size; i += 128) add_up(parts, dw, i, size);
}

#define GATHER(NAME, BODY)                                                                               \
    extern "C" __global__ void __launch_bounds__(128) NAME(const float* src, const float* weight, float* out, int n,  \
                                                           int in_h, int in_w, int in_c, int out_h, int out_w,        \
                                                           int out_c, int kernel, int stride, int pad) {              \
        BODY(src, weight, out,                                                                     \
                                Conv{n, in_h, in_w, in_c, out_h, out_w, out_c, kernel, stride, pad});                 \
    }
#define WEIGHTS(NAME, BODY)                                                                                   \
    extern "C" __global__ void __launch_bounds__(128) NAME(const float* x, const float* dy, float* parts, float* dw,  \
                                                           int* arrived, int n, int in_h, int in_w, int in_c,         \
                                                           int out_h, int out_w, int out_c, int kernel, int stride,   \
                                                           int pad) {                                                 \
        BODY(x, dy, parts, dw, arrived,                                                              \
                              Conv{n, in_h, in_w, in_c, out_h, out_w, out_c, kernel, stride, pad});                   \
    }

GATHER(forward_20_20, (gather<24, 1, true, true>))
GATHER(forward_20_40, (gather<40, 1, true, true>))
GATHER(forward_40_40, (gather<40, 1, false, true>))
GATHER(forward_80_40, (gather<40, 2, false, true>))
GATHER(backward_20_20, (gather<24, 1, true, false>))
GATHER(backward_40_20, (gather<24, 1, false, false>))
GATHER(backward_40_40, (gather<40, 1, false, false>))
GATHER(backward_80_40, (gather<40, 2, false, false>))
WEIGHTS(weights_20_20_3, (weights<20, 20, 3>))
WEIGHTS(weights_20_40_3, (weights<20, 40, 3>))
WEIGHTS(weights_40_40_3, (weights<40, 40, 3>))
WEIGHTS(weights_20_40_1, (weights<20, 40, 1>))
WEIGHTS(weights_40_40_1, (weights<40, 40, 1>))
GATHER(first_forward_3_20, (first_forward<3, 20>))
WEIGHTS(first_weights_3_20, (first_weights<3, 20>))
