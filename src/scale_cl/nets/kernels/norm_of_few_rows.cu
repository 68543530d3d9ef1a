// After norm.cu: one kernel a direction where rows are few.
// A block takes four channels (blockIdx.x) of all rows, part after part. The first HELD rows of a thread stay in its
// registers; only what is more than that is read a second time.

// Sums of eight values over all threads of the block, in a fixed order, to every thread.
__device__ void sum_over_block(float* values, float* shared) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
    for (int j = 0; j < 8; ++j)
        for (int other = 16; other > 0; other /= 2) values[j] += __shfl_xor_sync(0xffffffffu, values[j], other);
    __syncthreads();  // whoever still reads the sums of before
    if (lane == 0)
        for (int j = 0; j < 8; ++j) shared[8 + 8 * warp + j] = values[j];
    __syncthreads();
    for (int j = warp; j < 8; j += warps) {  // a warp for each of the eight, as far as there are so many
        float sum = lane < warps ? shared[8 + 8 * lane + j] : 0.f;
        for (int other = 16; other > 0; other /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, other);
        if (lane == 0) shared[j] = sum;
    }
    __syncthreads();
    for (int j = 0; j < 8; ++j) values[j] = shared[j];
}

template <int HELD>
__device__ void forward_whole(const float* __restrict__ x, const float* weight, const float* bias,
                              const float* __restrict__ shortcut, float* __restrict__ y, float* saved, Running running,
                              Parts s, int parts, int activate, int adds, float eps) {
    __shared__ float shared[8 + 8 * 32];
    const int c = 4 * blockIdx.x, threads = blockDim.x;
    for (int part = 0; part < parts; ++part) {
        const int rows = s.rows(part);
        const long long begin = (long long)s.begin(part) * s.channels + c;
        float origin[4], held[HELD][4], sums[8] = {};
        read<4>(x + begin, origin);
        auto take = [&](const float* v) {
            for (int j = 0; j < 4; ++j) {
                float d = v[j] - origin[j];
                sums[j] += d;
                sums[4 + j] += d * d;
            }
        };
        #pragma unroll
        for (int k = 0; k < HELD; ++k)
            if ((int)threadIdx.x + k * threads < rows)
                read<4>(x + begin + (long long)(threadIdx.x + k * threads) * s.channels, held[k]);
        #pragma unroll
        for (int k = 0; k < HELD; ++k)
            if ((int)threadIdx.x + k * threads < rows) take(held[k]);
        #pragma unroll 4
        for (int row = threadIdx.x + HELD * threads; row < rows; row += threads) {
            float v[4];
            read<4>(x + begin + (long long)row * s.channels, v);
            take(v);
        }
        sum_over_block(sums, shared);
        float mean[4], scale[4], shift[4];
        for (int j = 0; j < 4; ++j) {
            float offset = sums[j] / rows, var = fmaxf(sums[4 + j] / rows - offset * offset, 0.f);
            mean[j] = origin[j] + offset;
            float inverse = inverse_deviation(var, eps);
            scale[j] = weight[c + j] * inverse;
            shift[j] = bias[c + j];
            if ((int)threadIdx.x == j) {
                running.move(c + j, mean[j], var, rows);
                saved[part * 2 * s.channels + c + j] = mean[j];
                saved[(part * 2 + 1) * s.channels + c + j] = inverse;
            }
        }
        auto give = [&](int row, const float* v) {
            float out[4], other[4];
            long long at = begin + (long long)row * s.channels;
            if (adds) read<4>(shortcut + at, other);
            for (int j = 0; j < 4; ++j) {
                out[j] = normal(v[j], mean[j], scale[j], shift[j]);
                if (adds) out[j] += other[j];
                if (activate) out[j] = relu(out[j]);
            }
            write<4>(y + at, out);
        };
        #pragma unroll
        for (int k = 0; k < HELD; ++k)
            if ((int)threadIdx.x + k * threads < rows) give(threadIdx.x + k * threads, held[k]);
        #pragma unroll 4
        for (int row = threadIdx.x + HELD * threads; row < rows; row += threads) {
            float v[4];
            read<4>(x + begin + (long long)row * s.channels, v);
            give(row, v);
        }
    }
}

template <int HELD>
__device__ void backward_whole(const float* __restrict__ g, const float* __restrict__ x, const float* saved,
                               const float* weight, const float* bias, float* __restrict__ dx, float* dweight,
                               float* dbias, Parts s, int parts, int activate) {
    __shared__ float shared[8 + 8 * 32];
    const int c = 4 * blockIdx.x, threads = blockDim.x;
    float of_weight[4] = {}, of_bias[4] = {};
    for (int part = 0; part < parts; ++part) {
        const int rows = s.rows(part);
        const long long begin = (long long)s.begin(part) * s.channels + c;
        Channels<4> my;
        my.take(saved, weight, bias, s, part, c);
        float held_g[HELD][4], held_x[HELD][4], sums[8] = {};
        auto fetch = [&](int row, float* v, float* at) {
            read<4>(g + begin + (long long)row * s.channels, v);
            read<4>(x + begin + (long long)row * s.channels, at);
        };
        auto take = [&](float* v, float* at) {  // leaves the gradient behind ReLU, and the normalised value
            for (int j = 0; j < 4; ++j) {
                if (activate && !(normal(at[j], my.mean[j], my.scale[j], my.shift[j]) > 0.f)) v[j] = 0.f;
                at[j] = (at[j] - my.mean[j]) * my.inverse[j];
                sums[j] += v[j];
                sums[4 + j] += v[j] * at[j];
            }
        };
        #pragma unroll
        for (int k = 0; k < HELD; ++k)
            if ((int)threadIdx.x + k * threads < rows) fetch(threadIdx.x + k * threads, held_g[k], held_x[k]);
        #pragma unroll
        for (int k = 0; k < HELD; ++k)
            if ((int)threadIdx.x + k * threads < rows) take(held_g[k], held_x[k]);
        #pragma unroll 4
        for (int row = threadIdx.x + HELD * threads; row < rows; row += threads) {
            float v[4], at[4];
            fetch(row, v, at);
            take(v, at);
        }
        float all[8];
        for (int j = 0; j < 8; ++j) all[j] = sums[j];
        sum_over_block(all, shared);
        for (int j = 0; j < 4; ++j) of_bias[j] += all[j], of_weight[j] += all[4 + j];
        auto give = [&](int row, const float* v, const float* normalised) {
            float out[4];
            for (int j = 0; j < 4; ++j)
                out[j] = my.scale[j] * (v[j] - all[j] / rows - normalised[j] * (all[4 + j] / rows));
            write<4>(dx + begin + (long long)row * s.channels, out);
        };
        #pragma unroll
        for (int k = 0; k < HELD; ++k)
            if ((int)threadIdx.x + k * threads < rows) give(threadIdx.x + k * threads, held_g[k], held_x[k]);
        #pragma unroll 4
        for (int row = threadIdx.x + HELD * threads; row < rows; row += threads) {
            float v[4], at[4];
            fetch(row, v, at);
            take(v, at);
            give(row, v, at);
        }
    }
    if (threadIdx.x == 0)
        for (int j = 0; j < 4; ++j) dbias[c + j] = of_bias[j], dweight[c + j] = of_weight[j];
}

extern "C" __global__ void __launch_bounds__(1024)
    forward_whole_4(const float* x, const float* weight, const float* bias, const float* shortcut, float* y,
                    float* saved, float* running_mean, float* running_var, PARTS, int parts, int activate, int adds,
                    double momentum, double eps) {
    Running running{running_mean, running_var, (float)momentum};
    forward_whole<5>(x, weight, bias, shortcut, y, saved, running, MADE_PARTS, parts, activate, adds, (float)eps);
}
extern "C" __global__ void __launch_bounds__(1024)
    backward_whole_4(const float* g, const float* x, const float* saved, const float* weight, const float* bias,
                     float* dx, float* dweight, float* dbias, PARTS, int parts, int activate) {
    backward_whole<3>(g, x, saved, weight, bias, dx, dweight, dbias, MADE_PARTS, parts, activate);
}
