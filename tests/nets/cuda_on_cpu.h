// A block of a CUDA kernel on a CPU: a thread for each of its own, barriers for what keeps them together.
#include <barrier>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
struct Index { int x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
static thread_local Index threadIdx;
static Index blockIdx, gridDim;
static std::unique_ptr<std::barrier<>> block_barrier, warp_barrier[32];
static void __syncthreads() { block_barrier->arrive_and_wait(); }

// A copy lands when it likes after being sent for and before being waited for: even threads' at once, odd ones' late.
struct Copy { float* to; const float* from; int floats; bool inside; };
static thread_local std::deque<std::vector<Copy>> under_way;
static thread_local std::vector<Copy> sent_for;
static void land(const Copy& c) {
    if (c.inside) std::memcpy(c.to, c.from, 4 * c.floats);
    else std::memset(c.to, 0, 4 * c.floats);
}
static void send_for(Copy c) {
    if (threadIdx.x % 2) sent_for.push_back(c);
    else land(c);
}
static void copy16(float* to, const float* from, bool inside) { send_for({to, from, 4, inside}); }
static void copy4(float* to, const float* from, bool inside) { send_for({to, from, 1, inside}); }
static void commit() {
    under_way.push_back(sent_for);
    sent_for.clear();
}
template <int YOUNGEST> static void wait_for_all_but() {
    for (; under_way.size() > YOUNGEST; under_way.pop_front())
        for (const Copy& c : under_way.front()) land(c);
}

static void store2(float* to, float a, float b) { to[0] = a; to[1] = b; }
static unsigned tf32(float v) { unsigned u; std::memcpy(&u, &v, 4); return (u + 0x1000u) & ~0x1fffu; }
static float value(unsigned u) { float v; std::memcpy(&v, &u, 4); return v; }
static float warp_a[32][16][8], warp_b[32][8][8];
static void mma(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    int w = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    warp_a[w][g][t] = value(a[0]); warp_a[w][g + 8][t] = value(a[1]);
    warp_a[w][g][t + 4] = value(a[2]); warp_a[w][g + 8][t + 4] = value(a[3]);
    warp_b[w][t][g] = value(b0); warp_b[w][t + 4][g] = value(b1);
    warp_barrier[w]->arrive_and_wait();
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k) c[i] += warp_a[w][g + (i & 2 ? 8 : 0)][k] * warp_b[w][k][2 * t + (i & 1)];
    warp_barrier[w]->arrive_and_wait();
}

// Shared memory that the launch gives: NaN at first, so that what was never written shows, with a border behind it.
constexpr int SHARED_FLOATS = 1 << 16;
alignas(16) static float of_the_launch[SHARED_FLOATS];
static float* shared() { return of_the_launch; }

// Whether the kernel kept to its shared memory.
template <class F> static bool launch(const int* grid, int size, int bytes, F kernel) {
    gridDim = {grid[0], grid[1], grid[2]};
    block_barrier = std::make_unique<std::barrier<>>(size);
    for (int w = 0; w < size / 32; ++w) warp_barrier[w] = std::make_unique<std::barrier<>>(32);
    bool kept = true;
    std::vector<std::thread> threads;
    for (int i = 0; i < size; ++i)
        threads.emplace_back([=, &kept] {
            threadIdx = {i, 0, 0};
            for (int block = 0; block < gridDim.x * gridDim.y * gridDim.z; ++block) {
                __syncthreads();
                if (i == 0) {
                    blockIdx = {block % gridDim.x, block / gridDim.x % gridDim.y, block / gridDim.x / gridDim.y};
                    for (float& v : of_the_launch) v = NAN;
                }
                __syncthreads();
                kernel();
                wait_for_all_but<0>();
                __syncthreads();
                if (i == 0)
                    for (int at = bytes / 4; at < SHARED_FLOATS; ++at) kept = kept && std::isnan(of_the_launch[at]);
            }
        });
    for (auto& thread : threads) thread.join();
    return kept;
}

#define CONVOLUTION_ON_CPU(NAME)                                                                                       \
    extern "C" bool run_##NAME(const int* grid, int size, int bytes, const float* a, const float* b, float* c,         \
                               const int* n) {                                                                         \
        return launch(grid, size, bytes,                                                                               \
                      [=] { NAME(a, b, c, n[0], n[1], n[2], n[3], n[4], n[5], n[6], n[7], n[8], n[9]); });             \
    }
#define ADDING_ON_CPU(NAME)                                                                                            \
    extern "C" bool run_##NAME(const int* grid, int size, int bytes, const float* parts, float* sum, const int* n) {   \
        return launch(grid, size, bytes, [=] { NAME(parts, sum, n[0], n[1], n[2]); });                                 \
    }
