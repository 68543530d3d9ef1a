// After norm.cu: followed by ReLU and the largest of 3x3 with stride 2 and padding 1.
// Neither the normalised image nor its gradient is ever written: of each maximum its place (0 to 8, or 9: not positive,
// without a gradient; a byte each) and the value before normalisation are kept. Channels come in fours here.

struct Pool {
    int in_h, in_w, out_h, out_w;
};

template <int V>
__device__ void forward_pool(const float* __restrict__ x, const float* partial, const float* weight, const float* bias,
                             float* __restrict__ y, float* __restrict__ kept, unsigned char* __restrict__ place,
                             float* saved, Running running, Parts s, Pool size, int blocks, int keeps, float eps) {
    __shared__ float shared[ROOM];
    Channels<V> my = prepared<V>(x, partial, weight, bias, saved, running, s, blocks, eps, shared);
    const int groups = s.channels / V, part = blockIdx.y, of_image = size.out_h * size.out_w * groups;
    const int image = size.in_h * size.in_w, first = s.begin(part) / image * of_image;
    const int end = s.end[part] / image * of_image, step = gridDim.x * blockDim.x;
    for (int i = first + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        int pixel = i / groups, n = pixel / (size.out_h * size.out_w), rest = pixel - n * size.out_h * size.out_w;
        int oy = rest / size.out_w, ox = rest - oy * size.out_w;
        const float* corner = x + (((long long)n * size.in_h + 2 * oy - 1) * size.in_w + 2 * ox - 1) * s.channels;
        corner += (i - pixel * groups) * V;
        float best[V], from[V] = {};
        int where[V] = {};
        for (int j = 0; j < V; ++j) best[j] = -3.4e38f;
        #pragma unroll
        for (int k = 0; k < 9; ++k) {
            int ky = k / 3, kx = k - 3 * ky, iy = 2 * oy + ky - 1, ix = 2 * ox + kx - 1;
            if (iy < 0 || iy >= size.in_h || ix < 0 || ix >= size.in_w) continue;
            float at[V];
            read<V>(corner + ((long long)ky * size.in_w + kx) * s.channels, at);
            for (int j = 0; j < V; ++j) {
                float v = normal(at[j], my.mean[j], my.scale[j], my.shift[j]);
                if (v > best[j] || v != v) best[j] = v, from[j] = at[j], where[j] = k;
            }
        }
        if (keeps) {
            write<V>(kept + (long long)i * V, from);
            unsigned places = 0;
            for (int j = 0; j < V; ++j) places |= (best[j] > 0.f ? where[j] : 9) << 8 * j;
            reinterpret_cast<unsigned*>(place)[i] = places;
        }
        for (int j = 0; j < V; ++j) best[j] = relu(best[j]);
        write<V>(y + (long long)i * V, best);
    }
}

template <int V>
__device__ void backward_pool_sums(const float* __restrict__ g, const float* __restrict__ kept,
                                   const unsigned char* __restrict__ place, const float* saved, float* partial, Parts s,
                                   Pool size) {
    __shared__ float shared[ROOM];
    const int groups = s.channels / V, part = blockIdx.y, of_image = size.out_h * size.out_w * groups;
    const int image = size.in_h * size.in_w, first = s.begin(part) / image * of_image;
    const int end = s.end[part] / image * of_image, step = gridDim.x * blockDim.x, c = threadIdx.x % groups * V;
    const float* own = saved + part * 2 * s.channels;
    float mean[V], inverse[V], a[V] = {}, b[V] = {};
    for (int j = 0; j < V; ++j) mean[j] = own[c + j], inverse[j] = own[s.channels + c + j];
    #pragma unroll 4
    for (int i = first + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        float v[V], at[V];
        read<V>(g + (long long)i * V, v);
        read<V>(kept + (long long)i * V, at);
        unsigned places = reinterpret_cast<const unsigned*>(place)[i];
        for (int j = 0; j < V; ++j) {
            if ((places >> 8 * j & 255) == 9) v[j] = 0.f;
            a[j] += v[j];
            b[j] += v[j] * (at[j] - mean[j]) * inverse[j];
        }
    }
    keep<V>(a, b, s.channels, shared, partial + (part * gridDim.x + blockIdx.x) * 2 * s.channels);
}

template <int V>
__device__ void backward_pool_rest(const float* __restrict__ g, const float* __restrict__ x,
                                   const unsigned char* __restrict__ place, const float* saved, const float* partial,
                                   const float* weight, const float* bias, float* __restrict__ dx, float* dweight,
                                   float* dbias, Parts s, Pool size, int blocks) {
    __shared__ float shared[ROOM];
    const int groups = s.channels / V, part = blockIdx.y, step = gridDim.x * blockDim.x, end = s.end[part] * groups;
    const int c = threadIdx.x % groups * V;
    const Gradient<V> my(partial, saved, weight, bias, dweight, dbias, s, blocks, c, shared);
    for (int i = s.begin(part) * groups + blockIdx.x * blockDim.x + threadIdx.x; i < end; i += step) {
        int pixel = i / groups, row = pixel / size.in_w, ix = pixel - row * size.in_w;
        int n = row / size.in_h, iy = row - n * size.in_h;
        float v[V] = {}, at[V];
        read<V>(x + (long long)i * V, at);
        for (int oy = iy / 2; oy <= (iy + 1) / 2 && oy < size.out_h; ++oy)  // the windows that see this pixel
            for (int ox = ix / 2; ox <= (ix + 1) / 2 && ox < size.out_w; ++ox) {
                unsigned k = 3 * (iy - 2 * oy + 1) + ix - 2 * ox + 1;
                int window = ((n * size.out_h + oy) * size.out_w + ox) * groups + c / V;
                unsigned places = reinterpret_cast<const unsigned*>(place)[window];
                float from[V];
                read<V>(g + (long long)window * V, from);
                for (int j = 0; j < V; ++j)
                    if ((places >> 8 * j & 255) == k) v[j] += from[j];
            }
        for (int j = 0; j < V; ++j) v[j] = my.at(j, v[j], at[j]);
        write<V>(dx + (long long)i * V, v);
    }
}

#define POOL int in_h, int in_w, int out_h, int out_w
#define MADE_POOL (Pool{in_h, in_w, out_h, out_w})
extern "C" __global__ void forward_pool_4(const float* x, const float* partial, const float* weight, const float* bias,
                                          float* y, float* kept, unsigned char* place, float* saved,
                                          float* running_mean, float* running_var, PARTS, POOL, int blocks, int keeps,
                                          double momentum, double eps) {
    Running running{running_mean, running_var, (float)momentum};
    forward_pool<4>(x, partial, weight, bias, y, kept, place, saved, running, MADE_PARTS, MADE_POOL, blocks,
                    keeps, (float)eps);
}
extern "C" __global__ void backward_pool_sums_4(const float* g, const float* kept, const unsigned char* place,
                                                const float* saved, float* partial, PARTS, POOL) {
    backward_pool_sums<4>(g, kept, place, saved, partial, MADE_PARTS, MADE_POOL);
}
extern "C" __global__ void backward_pool_rest_4(const float* g, const float* x, const unsigned char* place,
                                                const float* saved, const float* partial, const float* weight,
                                                const float* bias, float* dx, float* dweight, float* dbias, PARTS, POOL,
                                                int blocks) {
    backward_pool_rest<4>(g, x, place, saved, partial, weight, bias, dx, dweight, dbias, MADE_PARTS, MADE_POOL, blocks);
}
