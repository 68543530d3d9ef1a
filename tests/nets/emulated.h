// Blocks of a CUDA kernel on a CPU, one after another: a thread for each of a block's, a barrier to keep them together.
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <thread>
#include <tuple>
#include <type_traits>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
#define __restrict__
using std::sqrt;
struct Index { int x, y, z; };
struct float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static thread_local Index threadIdx;
static Index blockIdx, gridDim, blockDim;
static std::unique_ptr<std::barrier<>> block_barrier;
static void __syncthreads() { block_barrier->arrive_and_wait(); }
static std::vector<std::unique_ptr<std::barrier<>>> warp_barriers;
static float lanes[32][32];
static float __shfl_xor_sync(unsigned, float v, int other) {
    int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    lanes[warp][lane] = v;
    warp_barriers[warp]->arrive_and_wait();
    v = lanes[warp][lane ^ other];
    warp_barriers[warp]->arrive_and_wait();
    return v;
}

template <class T> static T next(void**& pointers, const long long*& whole, const double*& real) {
    if constexpr (std::is_pointer_v<T>) return (T)*pointers++;
    else if constexpr (std::is_same_v<T, int>) return (int)*whole++;
    else return *real++;
}

template <class... A>
static void launch(void (*kernel)(A...), const int* grid, int threads, void** pointers, const long long* whole, const double* real) {
    std::tuple<A...> args{next<A>(pointers, whole, real)...};
    gridDim = {grid[0], grid[1], grid[2]}, blockDim = {threads, 1, 1};
    block_barrier = std::make_unique<std::barrier<>>(threads);
    warp_barriers.clear();
    for (int first = 0; first < threads; first += 32)
        warp_barriers.push_back(std::make_unique<std::barrier<>>(std::min(32, threads - first)));
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i)
        running.emplace_back([&, i] {
            threadIdx = {i, 0, 0};
            for (int block = 0; block < grid[0] * grid[1] * grid[2]; ++block) {
                __syncthreads();
                if (i == 0) blockIdx = {block % grid[0], block / grid[0] % grid[1], block / grid[0] / grid[1]};
                __syncthreads();
                std::apply(kernel, args);
            }
        });
    for (auto& thread : running) thread.join();
}
#define RUN(NAME)                                                                                                      \
    extern "C" void run_##NAME(const int* grid, int threads, void** pointers, const long long* whole, const double* real) { \
        launch(NAME, grid, threads, pointers, whole, real);                                                            \
    }
