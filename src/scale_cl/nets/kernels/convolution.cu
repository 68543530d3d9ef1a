// Images are [n, h, w, c] with channels last, weights [out, ky, kx, in]. Products are taken in TF32 (round to nearest),
// sums in fp32 and in a fixed order: the same bits every time.

struct Conv {
    int n, in_h, in_w, in_c, out_h, out_w, out_c, kernel, stride, pad;
};

// Chunks come in while older ones are worked on: `load` sends for a chunk, `work` is called once it is there, both with
// the stage it lies in. At the end the last chunk may still be at work in other warps.
template <int STAGES, class Load, class Work>
__device__ __forceinline__ void pipeline(int chunks, Load load, Work work) {
    int stage = 1, free = 0;  // of the chunk to work on, and for the one to send for: STAGES - 1 chunks ahead
    #pragma unroll 1
    for (int chunk = 1 - STAGES; chunk < chunks; ++chunk) {
        if (chunk >= 0) {
            wait_for_all_but<STAGES - 2>();
            __syncthreads();  // everyone's copies are there, and everyone is done with the chunk before
        }
        if (chunk + STAGES - 1 < chunks) load(chunk + STAGES - 1, free);
        commit();
        if (chunk >= 0) work(chunk, stage);
        free = stage;
        stage = stage + 1 == STAGES ? 0 : stage + 1;
    }
}

// ---- forward, and the gradient of the input ------------------------------------------------------------------------
// Both are out[m, j] = sum over taps t and channels c of src[pixel(m, t), c] * weight(t, c, j), where m runs over
// pixels. A tile is BM pixels times BN channels; K = (tap, channel) goes by in chunks of KC, which WK warps share.

struct __align__(16) Pixel {
    int y, x, from, to;  // where the tap at 0, 0 lies and where its floats begin; the pixel of `out`, -1: there is none
};
struct __align__(16) Tap {
    int y, x, from, weight;  // how much further it lies and its floats begin; where its weights begin
};

// FEW pixels of many channels: smaller tiles with more warps on each. PAIR: a chunk is two taps of KC / 2 channels.
template <int BN, bool FEW, bool PAIR, bool FORWARD>
__device__ void gather(const float* src, const float* weight, float* out, Conv s) {
    constexpr int WM = FEW ? 2 : 4, WK = FEW ? 5 : 1, KC = FEW ? 80 : 40, STAGES = FEW ? 4 : 3;
    constexpr int BM = 16 * WM, THREADS = 32 * WM * WK, QUADS = KC / 4, NT = BN / 8;
    constexpr int SA = KC + 4, SB = FORWARD ? KC + 4 : BN, ROWS_B = FORWARD ? BN : KC, ROW_B = FORWARD ? QUADS : BN / 4;
    constexpr int SIZE_A = BM * SA, SIZE_B = ROWS_B * SB;
    constexpr int SLOTS_A = BM * QUADS / THREADS, SLOTS_B = (ROWS_B * ROW_B + THREADS - 1) / THREADS;
    static_assert(BM * QUADS % THREADS == 0, "every thread has as many pieces of A to bring");
    float* tiles = shared();  // STAGES of SIZE_A + SIZE_B
    __shared__ Pixel pixel_at[BM];
    __shared__ Tap tap_at[10];

    const int c_src = PAIR ? KC / 2 : FORWARD ? s.in_c : s.out_c, c_out = FORWARD ? s.out_c : s.in_c;
    const int src_h = FORWARD ? s.in_h : s.out_h, src_w = FORWARD ? s.in_w : s.out_w;
    const int to_h = FORWARD ? s.out_h : s.in_h, to_w = FORWARD ? s.out_w : s.in_w;
    // With stride 2 the input's pixels fall in four classes by parity; each meets taps of its own.
    const int step = FORWARD ? 1 : s.stride, times = FORWARD ? s.stride : 1;
    const int py = blockIdx.z / step, px = blockIdx.z % step;
    const int grid_h = (to_h - py + step - 1) / step, grid_w = (to_w - px + step - 1) / step;
    const int rows = s.n * grid_h * grid_w, first = blockIdx.x * BM, j0 = blockIdx.y * BN;
    const int width = c_out < BN ? c_out : BN;  // of this tile: 20 in one of 24
    if (first >= rows) return;

    const int ky0 = (py + s.pad) % step, kx0 = (px + s.pad) % step, along = (s.kernel - kx0 + step - 1) / step;
    const int taps = along * ((s.kernel - ky0 + step - 1) / step), k2 = s.kernel * s.kernel;
    if (threadIdx.x < taps) {
        int i = threadIdx.x / along, ky = ky0 + i * step, kx = kx0 + (threadIdx.x - i * along) * step;
        int y = FORWARD ? ky - s.pad : (py + s.pad - ky) / step, x = FORWARD ? kx - s.pad : (px + s.pad - kx) / step;
        tap_at[threadIdx.x] = {y, x, (y * src_w + x) * c_src, (ky * s.kernel + kx) * (FORWARD ? c_src : c_out)};
    } else if (threadIdx.x < 10) {
        tap_at[threadIdx.x] = {-(1 << 20), 0, 0, 0};  // outside every image
    }
    if (threadIdx.x < BM) {
        int m = first + threadIdx.x, image = m / (grid_h * grid_w), rest = m - image * grid_h * grid_w;
        int y = rest / grid_w, x = rest - y * grid_w;
        int from = ((image * src_h + y * times) * src_w + x * times) * c_src;
        int to = (image * to_h + y * step + py) * to_w + x * step + px;
        pixel_at[threadIdx.x] = m < rows ? Pixel{y * times, x * times, from, to} : Pixel{-(1 << 20), 0, 0, -1};
    }
    __syncthreads();
    const int chunks = PAIR ? (taps + 1) / 2 : taps * (c_src / KC);

    // Where this thread's pieces of A and B come from, but for the tap, and go to: twice that, odd for a second tap.
    int y_a[SLOTS_A], x_a[SLOTS_A], from_a[SLOTS_A], to_a[SLOTS_A], from_b[SLOTS_B], to_b[SLOTS_B];
    #pragma unroll
    for (int i = 0; i < SLOTS_A; ++i) {
        int at = threadIdx.x + THREADS * i, row = at / QUADS, q = at - row * QUADS, half = PAIR && q >= QUADS / 2;
        Pixel p = pixel_at[row];
        y_a[i] = p.y, x_a[i] = p.x, from_a[i] = p.from + 4 * q - KC / 2 * half;
        to_a[i] = 2 * (row * SA + 4 * q) + half;
    }
    #pragma unroll
    for (int i = 0; i < SLOTS_B; ++i) {
        int at = threadIdx.x + THREADS * i, r = at / ROW_B, q = at - r * ROW_B;
        bool exists = r < ROWS_B && (FORWARD ? r : 4 * q) < width;
        int k = FORWARD ? 4 * q : r, half = PAIR && k >= KC / 2, c = k - KC / 2 * half;
        from_b[i] = !exists ? -1 : FORWARD ? (j0 + r) * k2 * c_src + c : c * k2 * c_out + j0 + 4 * q;
        to_b[i] = 2 * (r * SB + 4 * q) + half;
    }

    int tap = 0, c0 = 0;  // of the next chunk
    auto load = [&](int, int stage) {
        float *a = tiles + stage * (SIZE_A + SIZE_B), *b = a + SIZE_A;
        #pragma unroll
        for (int i = 0; i < SLOTS_A; ++i) {
            Tap p = tap_at[tap + (PAIR ? to_a[i] & 1 : 0)];
            bool inside = ((unsigned)(y_a[i] + p.y) < src_h) & ((unsigned)(x_a[i] + p.x) < src_w);
            copy16(a + (to_a[i] >> 1), src + (inside ? from_a[i] + p.from + c0 : 0), inside);
        }
        const int further = c0 * (FORWARD ? 1 : k2 * c_out);
        #pragma unroll
        for (int i = 0; i < SLOTS_B; ++i) {
            if (ROWS_B * ROW_B % THREADS && threadIdx.x + THREADS * i >= ROWS_B * ROW_B) continue;
            int half = PAIR ? to_b[i] & 1 : 0;
            bool inside = (from_b[i] >= 0) & (tap + half < taps);
            copy16(b + (to_b[i] >> 1), weight + (inside ? from_b[i] + tap_at[tap + half].weight + further : 0), inside);
        }
        if (PAIR) tap += 2;
        else if ((c0 += KC) == c_src) c0 = 0, ++tap;
    };

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int wm = warp % WM, wk = warp / WM;
    float acc[NT][4];
    #pragma unroll
    for (int n = 0; n < NT; ++n)
        for (int i = 0; i < 4; ++i) acc[n][i] = 0.f;

    pipeline<STAGES>(chunks, load, [&](int, int stage) {
        const int k0 = wk * (KC / WK);
        const float* a = tiles + stage * (SIZE_A + SIZE_B) + (wm * 16 + g) * SA + k0 + t;
        const float* b = tiles + stage * (SIZE_A + SIZE_B) + SIZE_A + (FORWARD ? g * SB + k0 + t : (k0 + t) * SB + g);
        #pragma unroll
        for (int k = 0; k < KC / WK; k += 8) {
            unsigned fa[4] = {tf32(a[k]), tf32(a[8 * SA + k]), tf32(a[k + 4]), tf32(a[8 * SA + k + 4])};
            #pragma unroll
            for (int n = 0; n < NT; ++n) {
                const float* at = FORWARD ? b + 8 * n * SB + k : b + k * SB + 8 * n;
                mma(acc[n], fa, tf32(at[0]), tf32(at[FORWARD ? 4 : 4 * SB]));
            }
        }
    });

    if (WK > 1) {  // the warps along K lay their sums side by side; the first adds them up, in order
        auto sum = [&](int k, int n, int i) -> float& {
            return tiles[(((k * WM + wm) * NT + n) * 4 + i) * 32 + lane];
        };
        __syncthreads();
        if (wk > 0)
            for (int n = 0; n < NT; ++n)
                for (int i = 0; i < 4; ++i) sum(wk - 1, n, i) = acc[n][i];
        __syncthreads();
        if (wk > 0) return;
        #pragma unroll
        for (int k = 0; k < WK - 1; ++k)
            for (int n = 0; n < NT; ++n)
                for (int i = 0; i < 4; ++i) acc[n][i] += sum(k, n, i);
    }
    #pragma unroll
    for (int half = 0; half < 2; ++half) {
        int pixel = pixel_at[wm * 16 + g + 8 * half].to;
        if (pixel < 0) continue;
        float* to = out + (long long)pixel * c_out + j0;
        #pragma unroll
        for (int n = 0; n < NT; ++n)
            if (8 * n + 2 * t < width) store2(to + 8 * n + 2 * t, acc[n][2 * half], acc[n][2 * half + 1]);
    }
}

// ---- the gradient of the weights -----------------------------------------------------------------------------------
// dW[j, ky, kx, c] = sum over pixels p of dy[p, j] * x[pixel(p, ky, kx), c]. A tile is one ky with all its kx, CI input
// and CO output channels; the pixels are dealt out over blockIdx.z. Each of these makes a part of its own, all of the
// weights' size, and `add_parts` adds them up.

template <int CI, int CO, int TAPS>
__device__ void weights(const float* x, const float* dy, float* parts, Conv s) {
    constexpr int M = TAPS * CI, MT = (M + 15) / 16, PER = (MT + 3) / 4, NT = (CO + 7) / 8, STAGES = 3;
    constexpr int SA = (MT * 16 + 31) / 32 * 32 + 8, SB = CO == 20 ? 24 : 40, SIZE_A = 32 * SA, SIZE_B = 32 * SB;
    float* tiles = shared();  // STAGES of SIZE_A + SIZE_B

    const int tiles_i = s.in_c / CI, ky = blockIdx.x / tiles_i, i0 = (blockIdx.x - ky * tiles_i) * CI;
    const int j0 = blockIdx.y * CO, pixels = s.n * s.out_h * s.out_w;
    const int chunks = (pixels + 31) / 32, each = (chunks + gridDim.z - 1) / gridDim.z;
    const int begin = blockIdx.z * each, end = begin + each < chunks ? begin + each : chunks;

    constexpr int Q = CI / 4, SLOTS_A = (TAPS * Q + 3) / 4, SLOTS_B = (CO / 4 + 3) / 4;  // four threads fill a row
    const int r = threadIdx.x / 4, q0 = threadIdx.x % 4;
    int kx[SLOTS_A], further[SLOTS_A];  // of this thread's pieces: their tap, and where in the image's row they lie
    #pragma unroll
    for (int i = 0; i < SLOTS_A; ++i) {
        kx[i] = (q0 + 4 * i) / Q;
        further[i] = kx[i] * s.in_c + 4 * (q0 + 4 * i - kx[i] * Q);
    }
    // This thread's pixel of the next chunk; the one after that is 32 pixels on.
    int p = begin * 32 + r, image = p / (s.out_h * s.out_w), rest = p - image * s.out_h * s.out_w;
    int oy = rest / s.out_w, ox = rest - oy * s.out_w;
    const int on_x = 32 % s.out_w, on_y = 32 / s.out_w % s.out_h, on_image = 32 / s.out_w / s.out_h;
    auto load = [&](int, int stage) {
        float *a = tiles + stage * (SIZE_A + SIZE_B) + r * SA, *b = tiles + stage * (SIZE_A + SIZE_B) + SIZE_A + r * SB;
        const int y = oy * s.stride + ky - s.pad, x0 = ox * s.stride - s.pad;
        const int from = ((image * s.in_h + y) * s.in_w + x0) * s.in_c + i0;
        const bool there = p < pixels, in_row = there & ((unsigned)y < s.in_h);
        #pragma unroll
        for (int i = 0; i < SLOTS_A; ++i) {
            if (TAPS * Q % 4 && q0 + 4 * i >= TAPS * Q) continue;
            bool inside = in_row & ((unsigned)(x0 + kx[i]) < s.in_w);
            copy16(a + 4 * (q0 + 4 * i), x + (inside ? from + further[i] : 0), inside);
        }
        #pragma unroll
        for (int i = 0; i < SLOTS_B; ++i) {
            if (CO / 4 % 4 && q0 + 4 * i >= CO / 4) continue;
            copy16(b + 4 * (q0 + 4 * i), dy + (there ? p * s.out_c + j0 + 4 * (q0 + 4 * i) : 0), there);
        }
        p += 32, image += on_image, oy += on_y, ox += on_x;
        if (ox >= s.out_w) ox -= s.out_w, ++oy;
        if (oy >= s.out_h) oy -= s.out_h, ++image;
    };

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    float acc[PER][NT][4];
    for (int m = 0; m < PER; ++m)
        for (int n = 0; n < NT; ++n)
            for (int i = 0; i < 4; ++i) acc[m][n][i] = 0.f;
    pipeline<STAGES>(end - begin, load, [&](int, int stage) {
        const float* a = tiles + stage * (SIZE_A + SIZE_B) + t * SA + g;
        const float* b = tiles + stage * (SIZE_A + SIZE_B) + SIZE_A + t * SB + g;
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
    });

    float* to = parts + (long long)blockIdx.z * s.out_c * s.kernel * s.kernel * s.in_c;
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
}

__device__ __forceinline__ void add(float4& sum, float4 v) { sum.x += v.x, sum.y += v.y, sum.z += v.z, sum.w += v.w; }

// `many` parts of `quads` times four values, added in a fixed order: `rows` threads share a column of the parts.
extern "C" __global__ void __launch_bounds__(128, 8)
    add_parts(const float* parts, float* dw, int many, int quads, int rows) {
    __shared__ float4 sums[128];
    const int columns = 128 / rows, row = threadIdx.x / columns, column = threadIdx.x - row * columns;
    const int at = blockIdx.x * columns + column;
    const float4* from = reinterpret_cast<const float4*>(parts) + at;
    float4 sum = {0.f, 0.f, 0.f, 0.f};
    for (int z = row; z < many; z += 8 * rows) {
        float4 v[8];  // all under way at once
        #pragma unroll
        for (int i = 0; i < 8; ++i) {
            v[i] = {0.f, 0.f, 0.f, 0.f};
            if (at < quads && z + i * rows < many) v[i] = from[(long long)(z + i * rows) * quads];
        }
        #pragma unroll
        for (int i = 0; i < 8; ++i) add(sum, v[i]);
    }
    sums[threadIdx.x] = sum;
    __syncthreads();
    if (row > 0 || at >= quads) return;
    for (int r = 1; r < rows; ++r) add(sum, sums[r * columns + column]);
    reinterpret_cast<float4*>(dw)[at] = sum;
}

// ---- the first layer: 3x3 over colours, stride 1 -------------------------------------------------------------------
// K is all of a pixel's surroundings at once: 27 values, in tiles of 32.

// What a filter sees around pixel p, by two threads: each every other value.
template <int CI>
__device__ __forceinline__ void surroundings(const float* x, int p, float* to, Conv s) {
    const int image = p / (s.out_h * s.out_w), rest = p - image * s.out_h * s.out_w, oy = rest / s.out_w;
    const int ox = rest - oy * s.out_w, corner = ((image * s.in_h + oy - 1) * s.in_w + ox - 1) * CI;
    int seen = 0;  // a bit for each tap inside the image
    #pragma unroll
    for (int tap = 0; tap < 9; ++tap) {
        bool inside = ((unsigned)(oy + tap / 3 - 1) < s.in_h) & ((unsigned)(ox + tap % 3 - 1) < s.in_w);
        seen |= (inside & (image < s.n)) << tap;
    }
    const bool odd = threadIdx.x % 2;
    #pragma unroll
    for (int k = 0; k < 9 * CI; k += 2) {  // both choices are known beforehand, and mostly the same
        if (k + 1 >= 9 * CI && odd) continue;
        bool inside = seen >> (odd ? (k + 1) / CI : k / CI) & 1;
        int row = odd ? (k + 1) / (3 * CI) : k / (3 * CI), along = odd ? (k + 1) % (3 * CI) : k % (3 * CI);
        copy4(to + k + odd, x + (inside ? corner + row * s.in_w * CI + along : 0), inside);
    }
}

template <int CI, int CO>
__device__ void first_forward(const float* x, const float* weight, float* out, Conv s) {
    constexpr int K = 9 * CI, KT = (K + 7) / 8, S = 36, NT = (CO + 7) / 8, STAGES = 3;
    float *a = shared(), *b = a + STAGES * 64 * S;  // STAGES of 64 pixels, and the filters
    const int rows = s.n * s.out_h * s.out_w, tiles = (rows + 63) / 64;
    for (int i = threadIdx.x; i < 8 * NT * 8 * KT; i += 128) {
        int j = i / (8 * KT), k = i - j * 8 * KT;
        b[j * S + k] = j < CO && k < K ? weight[j * K + k] : 0.f;
    }
    for (int row = threadIdx.x; row < STAGES * 64; row += 128)  // what no tile fills stays zero
        for (int k = K; k < 8 * KT; ++k) a[row * S + k] = 0.f;

    const int row = threadIdx.x / 2;
    auto load = [&](int turn, int stage) {
        int tile = blockIdx.x + turn * gridDim.x;
        surroundings<CI>(x, tile * 64 + row, a + (stage * 64 + row) * S, s);
    };

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    const int turns = (tiles - (int)blockIdx.x + (int)gridDim.x - 1) / (int)gridDim.x;
    pipeline<STAGES>(turns, load, [&](int turn, int stage) {
        int tile = blockIdx.x + turn * gridDim.x;
        float acc[NT][4] = {};
        const float *at = a + (stage * 64 + 16 * warp + g) * S + t, *bt = b + g * S + t;
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
    });
}

template <int CI, int CO>
__device__ void first_weights(const float* x, const float* dy, float* parts, Conv s) {
    constexpr int K = 9 * CI, MT = (K + 15) / 16, NT = (CO + 7) / 8, SA = 40, SB = 24, SIZE_A = 64 * SA;
    constexpr int STAGE = SIZE_A + 64 * SB, STAGES = 3;
    float* tiles = shared();
    const int pixels = s.n * s.out_h * s.out_w, chunks = (pixels + 63) / 64;
    const int each = (chunks + gridDim.z - 1) / gridDim.z, begin = blockIdx.z * each;
    const int end = begin + each < chunks ? begin + each : chunks, row = threadIdx.x / 2;

    auto load = [&](int chunk, int stage) {
        float *a = tiles + stage * STAGE + row * SA, *b = tiles + stage * STAGE + SIZE_A + row * SB;
        int p = (begin + chunk) * 64 + row;
        surroundings<CI>(x, p, a, s);
        for (int q = threadIdx.x % 2; q < CO / 4; q += 2)
            copy16(b + 4 * q, p < pixels ? dy + (long long)p * CO + 4 * q : dy, p < pixels);
    };

    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, g = lane >> 2, t = lane & 3;
    float acc[MT][NT][4] = {};
    pipeline<STAGES>(end - begin, load, [&](int, int stage) {
        const float* a = tiles + stage * STAGE + (16 * warp + t) * SA + g;  // 16 pixels a warp
        const float* b = tiles + stage * STAGE + SIZE_A + (16 * warp + t) * SB + g;
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
    });
    __syncthreads();
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
    float* to = parts + (long long)blockIdx.z * size;
    for (int i = threadIdx.x; i < size; i += 128)
        to[i] = tiles[i] + tiles[size + i] + tiles[2 * size + i] + tiles[3 * size + i];
}

// BLOCKS is how many of them shared memory lets on a multiprocessor: so many registers may be used.
#define KERNEL(NAME, THREADS, BLOCKS, BODY)                                                                            \
    extern "C" __global__ void __launch_bounds__(THREADS, BLOCKS)                                                      \
        NAME(const float* a, const float* b, float* to, int n, int in_h, int in_w, int in_c, int out_h, int out_w,     \
             int out_c, int kernel, int stride, int pad) {                                                             \
        BODY(a, b, to, Conv{n, in_h, in_w, in_c, out_h, out_w, out_c, kernel, stride, pad});                           \
    }

KERNEL(forward_20_20, 128, 4, (gather<24, false, true, true>))
KERNEL(forward_20_40, 128, 4, (gather<40, false, true, true>))
KERNEL(forward_40_40, 128, 4, (gather<40, false, false, true>))
KERNEL(forward_few_40_40, 320, 2, (gather<40, true, true, true>))
KERNEL(forward_few_80_40, 320, 2, (gather<40, true, false, true>))
KERNEL(backward_20_20, 128, 4, (gather<24, false, true, false>))
KERNEL(backward_40_20, 128, 4, (gather<24, false, false, false>))
KERNEL(backward_40_40, 128, 4, (gather<40, false, false, false>))
KERNEL(backward_few_40_40, 320, 2, (gather<40, true, true, false>))
KERNEL(backward_few_80_40, 320, 2, (gather<40, true, false, false>))
KERNEL(weights_20_20_3, 128, 4, (weights<20, 20, 3>))
KERNEL(weights_20_40_3, 128, 4, (weights<20, 40, 3>))
KERNEL(weights_40_40_3, 128, 3, (weights<40, 40, 3>))
KERNEL(weights_20_40_1, 128, 4, (weights<20, 40, 1>))
KERNEL(weights_40_40_1, 128, 4, (weights<40, 40, 1>))
KERNEL(first_forward_3_20, 128, 4, (first_forward<3, 20>))
KERNEL(first_weights_3_20, 128, 4, (first_weights<3, 20>))
