// Batch norm of images with channels last, that is of rows x channels; parts of the batch (blockIdx.y) have statistics
// of their own. A thread keeps to V neighbouring channels, as the block size is a multiple of channels / V. Sums of two
// values a channel are taken within blocks, then over blocks, in a fixed order: the same bits every time.

constexpr int ROOM = 4096;  // floats that a block shares

struct Parts {
    int channels, end[4];  // of each part: the row after its last
    __device__ int begin(int part) const { return part == 0 ? 0 : end[part - 1]; }
    __device__ int rows(int part) const { return end[part] - begin(part); }
};

template <int V>
__device__ __forceinline__ void read(const float* from, float* to) {
    if (V == 4) {
        float4 q = *reinterpret_cast<const float4*>(from);
        to[0] = q.x, to[1 % V] = q.y, to[2 % V] = q.z, to[3 % V] = q.w;
    } else
        to[0] = from[0];
}
template <int V>
__device__ __forceinline__ void write(float* to, const float* from) {
    if (V == 4) *reinterpret_cast<float4*>(to) = make_float4(from[0], from[1 % V], from[2 % V], from[3 % V]);
    else to[0] = from[0];
}

// One expression for value and gradient, so that both agree on which values are positive.
__device__ __forceinline__ float normal(float x, float mean, float scale, float shift) {
    return __fmaf_rn(x - mean, scale, shift);
}
__device__ __forceinline__ float relu(float v) { return v < 0.f ? 0.f : v; }  // a NaN stays one

// ---- sums ----------------------------------------------------------------------------------------------------------

// The block's sums of a and b for each channel, to partial[2 * channels].
template <int V>
__device__ void keep(const float* a, const float* b, int channels, float* shared, float* partial) {
    const int threads = blockDim.x, tid = threadIdx.x, groups = channels / V, each = threads / groups, w = 2 * channels;
    for (int j = 0; j < V; ++j) {
        shared[j * threads + tid] = a[j];
        shared[(V + j) * threads + tid] = b[j];
    }
    __syncthreads();
    const int helpers = threads >= w ? threads / w : 1;  // threads that share a sum
    auto sum = [&](int value, int first) {
        int c = value % channels;
        const float* at = shared + (value / channels * V + c % V) * threads + c / V;
        float s = 0.f;
        for (int k = first; k < each; k += helpers) s += at[k * groups];
        return s;
    };
    if (helpers == 1) {
        for (int value = tid; value < w; value += threads) partial[value] = sum(value, 0);
        return;
    }
    float s = tid < helpers * w ? sum(tid % w, tid / w) : 0.f;
    __syncthreads();
    shared[tid] = s;
    __syncthreads();
    if (tid >= w) return;
    s = 0.f;
    for (int k = 0; k < helpers; ++k) s += shared[k * w + tid];
    partial[tid] = s;
}

// The blocks' sums added up, to shared[2 * channels].
__device__ void total(const float* partial, int blocks, int channels, float* shared) {
    const int threads = blockDim.x, tid = threadIdx.x, w = 2 * channels, helpers = threads >= w ? threads / w : 1;
    auto sum = [&](int value, int first) {
        float s = 0.f;
        #pragma unroll 8
        for (int k = first; k < blocks; k += helpers) s += partial[k * w + value];
        return s;
    };
    __syncthreads();  // whoever still reads what is shared
    if (helpers == 1)
        for (int value = tid; value < w; value += threads) shared[value] = sum(value, 0);
    else {
        if (tid < helpers * w) shared[w + tid] = sum(tid % w, tid / w);
        __syncthreads();
        if (tid < w) {
            float s = 0.f;
            for (int k = 0; k < helpers; ++k) s += shared[w + k * w + tid];
            shared[tid] = s;
        }
    }
    __syncthreads();
}

// ---- forward -------------------------------------------------------------------------------------------------------

template <int V>
__device__ void forward_sums(const float* __restrict__ x, float* partial, Parts s) {
    __shared__ float shared[ROOM];
    const int groups = s.channels / V, part = blockIdx.y, step = gridDim.x * blockDim.x, end = s.end[part] * groups;
    float origin[V], a[V] = {}, b[V] = {};  // sums are taken around the part's first row: no cancellation
    read<V>(x + ((long long)s.begin(part) * groups + threadIdx.x % groups) * V, origin);
    #pragma unroll 4
    for (int i = s.begin(part) * groups + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        float v[V];
        read<V>(x + (long long)i * V, v);
        for (int j = 0; j < V; ++j) {
            v[j] -= origin[j];
            a[j] += v[j];
            b[j] += v[j] * v[j];
        }
    }
    keep<V>(a, b, s.channels, shared, partial + (part * gridDim.x + blockIdx.x) * 2 * s.channels);
}

struct Running {
    float *mean, *var;
    float momentum;

    __device__ void move(int c, float of_mean, float of_var, int rows) const {
        float unbiased = of_var * ((float)rows / (float)(rows - 1));
        mean[c] += momentum * (of_mean - mean[c]);
        var[c] += momentum * (unbiased - var[c]);
    }
};

__device__ __forceinline__ float inverse_deviation(float var, float eps) { return 1.f / sqrtf(var + eps); }

// Mean and one over the deviation of a part, to shared[2 * channels]; moves the running statistics if there are any.
__device__ void statistics(const float* x, const float* partial, int blocks, int part, Parts s, float eps,
                           float* shared, Running running) {
    const int channels = s.channels, rows = s.rows(part);
    total(partial + part * blocks * 2 * channels, blocks, channels, shared);
    for (int c = threadIdx.x; c < channels; c += blockDim.x) {
        float offset = shared[c] / rows, mean = x[(long long)s.begin(part) * channels + c] + offset;
        float var = fmaxf(shared[channels + c] / rows - offset * offset, 0.f);
        shared[c] = mean;
        shared[channels + c] = inverse_deviation(var, eps);
        if (running.mean != nullptr) running.move(c, mean, var, rows);
    }
    __syncthreads();
}

// What a thread needs to normalise its channels.
template <int V>
struct Channels {
    float mean[V], inverse[V], scale[V], shift[V];

    __device__ void take(const float* means, const float* inverses, const float* weight, const float* bias, int c) {
        for (int j = 0; j < V; ++j) {
            mean[j] = means[c + j];
            inverse[j] = inverses[c + j];
            scale[j] = weight[c + j] * inverse[j];
            shift[j] = bias[c + j];
        }
    }
    // By the statistics of a part that forward saved.
    __device__ void take(const float* saved, const float* weight, const float* bias, Parts s, int part, int c) {
        const float* own = saved + part * 2 * s.channels;
        take(own, own + s.channels, weight, bias, c);
    }
};

// The statistics of the block's part; the first block of all moves the running ones by every part, in order.
template <int V>
__device__ Channels<V> prepared(const float* x, const float* partial, const float* weight, const float* bias,
                                float* saved, Running running, Parts s, int blocks, float eps, float* shared) {
    const int part = blockIdx.y, channels = s.channels;
    const bool moves = blockIdx.x == 0 && part == 0, last = gridDim.y == 1;
    if (moves)
        for (int other = 0; other < (int)gridDim.y; ++other)
            statistics(x, partial, blocks, other, s, eps, shared, running);
    if (!moves || !last) statistics(x, partial, blocks, part, s, eps, shared, Running{nullptr, nullptr, 0.f});
    if (blockIdx.x == 0)
        for (int i = threadIdx.x; i < 2 * channels; i += blockDim.x) saved[part * 2 * channels + i] = shared[i];
    Channels<V> mine;
    mine.take(shared, shared + channels, weight, bias, threadIdx.x % (channels / V) * V);
    return mine;
}

template <int V>
__device__ void forward_rest(const float* __restrict__ x, const float* partial, const float* weight, const float* bias,
                             const float* __restrict__ shortcut, float* __restrict__ y, float* saved, Running running,
                             Parts s, int blocks, int activate, int adds, float eps) {
    __shared__ float shared[ROOM];
    Channels<V> my = prepared<V>(x, partial, weight, bias, saved, running, s, blocks, eps, shared);
    const int groups = s.channels / V, part = blockIdx.y, step = gridDim.x * blockDim.x, end = s.end[part] * groups;
    #pragma unroll 4
    for (int i = s.begin(part) * groups + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        float v[V], other[V];
        read<V>(x + (long long)i * V, v);
        if (adds) read<V>(shortcut + (long long)i * V, other);
        for (int j = 0; j < V; ++j) {
            v[j] = normal(v[j], my.mean[j], my.scale[j], my.shift[j]);
            if (adds) v[j] += other[j];
            if (activate) v[j] = relu(v[j]);
        }
        write<V>(y + (long long)i * V, v);
    }
}

// ---- backward ------------------------------------------------------------------------------------------------------

template <int V>
__device__ void backward_sums(const float* __restrict__ g, const float* __restrict__ x, const float* saved,
                              const float* weight, const float* bias, float* partial, Parts s, int activate) {
    __shared__ float shared[ROOM];
    const int groups = s.channels / V, part = blockIdx.y, step = gridDim.x * blockDim.x, end = s.end[part] * groups;
    Channels<V> my;
    my.take(saved, weight, bias, s, part, threadIdx.x % groups * V);
    float a[V] = {}, b[V] = {};
    #pragma unroll 4
    for (int i = s.begin(part) * groups + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        float v[V], at[V];
        read<V>(g + (long long)i * V, v);
        read<V>(x + (long long)i * V, at);
        for (int j = 0; j < V; ++j) {
            if (activate && !(normal(at[j], my.mean[j], my.scale[j], my.shift[j]) > 0.f)) v[j] = 0.f;
            a[j] += v[j];
            b[j] += v[j] * (at[j] - my.mean[j]) * my.inverse[j];
        }
    }
    keep<V>(a, b, s.channels, shared, partial + (part * gridDim.x + blockIdx.x) * 2 * s.channels);
}

// The part's means of the gradient and of its product with the normalised values, to shared[2 * channels]; the first
// block of all adds up every part's for the gradients of weight and bias.
__device__ void gradients(const float* partial, Parts s, int blocks, float* dweight, float* dbias, float* shared) {
    const int channels = s.channels, part = blockIdx.y;
    if (blockIdx.x == 0 && part == 0)
        for (int other = 0; other < (int)gridDim.y; ++other) {
            total(partial + other * blocks * 2 * channels, blocks, channels, shared);
            for (int c = threadIdx.x; c < channels; c += blockDim.x) {
                dbias[c] = (other == 0 ? 0.f : dbias[c]) + shared[c];
                dweight[c] = (other == 0 ? 0.f : dweight[c]) + shared[channels + c];
            }
        }
    if (blockIdx.x != 0 || part != 0 || gridDim.y > 1)
        total(partial + part * blocks * 2 * channels, blocks, channels, shared);
}

// What a thread needs for the gradient of its channels' inputs.
template <int V>
struct Gradient : Channels<V> {
    float sum[V], along[V];

    __device__ Gradient(const float* partial, const float* saved, const float* weight, const float* bias,
                        float* dweight, float* dbias, Parts s, int blocks, int c, float* shared) {
        gradients(partial, s, blocks, dweight, dbias, shared);
        this->take(saved, weight, bias, s, blockIdx.y, c);
        for (int j = 0; j < V; ++j) {
            sum[j] = shared[c + j] / s.rows(blockIdx.y);
            along[j] = shared[s.channels + c + j] / s.rows(blockIdx.y);
        }
    }
    __device__ float at(int j, float v, float x) const {
        return this->scale[j] * (v - sum[j] - (x - this->mean[j]) * this->inverse[j] * along[j]);
    }
};

template <int V>
__device__ void backward_rest(const float* __restrict__ g, const float* __restrict__ x, const float* saved,
                              const float* partial, const float* weight, const float* bias, float* __restrict__ dx,
                              float* dweight, float* dbias, Parts s, int blocks, int activate) {
    __shared__ float shared[ROOM];
    const int groups = s.channels / V, part = blockIdx.y, step = gridDim.x * blockDim.x, end = s.end[part] * groups;
    const Gradient<V> my(partial, saved, weight, bias, dweight, dbias, s, blocks, threadIdx.x % groups * V, shared);
    #pragma unroll 4
    for (int i = s.begin(part) * groups + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        float v[V], at[V];
        read<V>(g + (long long)i * V, v);
        read<V>(x + (long long)i * V, at);
        for (int j = 0; j < V; ++j) {
            if (activate && !(normal(at[j], my.mean[j], my.scale[j], my.shift[j]) > 0.f)) v[j] = 0.f;
            v[j] = my.at(j, v[j], at[j]);
        }
        write<V>(dx + (long long)i * V, v);
    }
}

// ---- the kernels for V channels a thread: 4, or 1 for any number ----------------------------------------------------

#define PARTS int channels, int e0, int e1, int e2, int e3
#define MADE_PARTS (Parts{channels, {e0, e1, e2, e3}})
#define KERNELS(V)                                                                                                     \
    extern "C" __global__ void forward_sums_##V(const float* x, float* partial, PARTS) {                               \
        forward_sums<V>(x, partial, MADE_PARTS);                                                                       \
    }                                                                                                                  \
    extern "C" __global__ void forward_rest_##V(const float* x, const float* partial, const float* weight,             \
                                                const float* bias, const float* shortcut, float* y, float* saved,      \
                                                float* running_mean, float* running_var, PARTS, int blocks,            \
                                                int activate, int adds, double momentum, double eps) {                 \
        Running running{running_mean, running_var, (float)momentum};                                                   \
        forward_rest<V>(x, partial, weight, bias, shortcut, y, saved, running,                                         \
                        MADE_PARTS, blocks, activate, adds, (float)eps);                                               \
    }                                                                                                                  \
    extern "C" __global__ void backward_sums_##V(const float* g, const float* x, const float* saved,                   \
                                                 const float* weight, const float* bias, float* partial, PARTS,        \
                                                 int activate) {                                                       \
        backward_sums<V>(g, x, saved, weight, bias, partial, MADE_PARTS, activate);                                    \
    }                                                                                                                  \
    extern "C" __global__ void backward_rest_##V(const float* g, const float* x, const float* saved,                   \
                                                 const float* partial, const float* weight, const float* bias,         \
                                                 float* dx, float* dweight, float* dbias, PARTS, int blocks,           \
                                                 int activate) {                                                       \
        backward_rest<V>(g, x, saved, partial, weight, bias, dx, dweight, dbias, MADE_PARTS, blocks, activate);        \
    }
