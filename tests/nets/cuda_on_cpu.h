// A block of a CUDA kernel on a CPU: a thread for each of its 128, barriers for what keeps them together.
#include <barrier>
#include <cstring>
#include <cstdint>
#include <thread>
#include <vector>
#define __global__
#define __device__
#define __shared__ static
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(n)
struct Index { int x, y, z; };
static thread_local Index threadIdx;
static Index blockIdx, gridDim;
static std::barrier<> block_barrier(128);
static std::barrier<> warp_barrier[4] = {std::barrier<>(32), std::barrier<>(32), std::barrier<>(32), std::barrier<>(32)};
static void __syncthreads() { block_barrier.arrive_and_wait(); }
static void copy16(float* to, const float* from, bool inside) { if (inside) std::memcpy(to, from, 16); else std::memset(to, 0, 16); }
static void copy4(float* to, const float* from, bool inside) { *to = inside ? *from : 0; }
static void commit() {}
static void wait_for_older() {}
static void fence() {}
static void store2(float* to, float a, float b) { to[0] = a; to[1] = b; }
static unsigned tf32(float v) { unsigned u; std::memcpy(&u, &v, 4); return (u + 0x1000u) & ~0x1fffu; }
static float value(unsigned u) { float v; std::memcpy(&v, &u, 4); return v; }
static int atomicAdd(int* at, int n) { return __atomic_fetch_add(at, n, __ATOMIC_SEQ_CST); }
static float warp_a[4][16][8], warp_b[4][8][8];
static void mma(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    int w = threadIdx.x >> 5, lane = threadIdx.x & 31, g = lane >> 2, t = lane & 3;
    warp_a[w][g][t] = value(a[0]); warp_a[w][g + 8][t] = value(a[1]);
    warp_a[w][g][t + 4] = value(a[2]); warp_a[w][g + 8][t + 4] = value(a[3]);
    warp_b[w][t][g] = value(b0); warp_b[w][t + 4][g] = value(b1);
    warp_barrier[w].arrive_and_wait();
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k) c[i] += warp_a[w][g + (i & 2 ? 8 : 0)][k] * warp_b[w][k][2 * t + (i & 1)];
    warp_barrier[w].arrive_and_wait();
}

#define ON_CPU                                                                                                         \
    template <class F> static void launch(int gx, int gy, int gz, F kernel) {                                          \
        gridDim = {gx, gy, gz};                                                                                        \
        std::vector<std::thread> threads;                                                                              \
        for (int i = 0; i < 128; ++i)                                                                                  \
            threads.emplace_back([=] {                                                                                 \
                threadIdx = {i, 0, 0};                                                                                 \
                for (int z = 0; z < gz; ++z)                                                                           \
                    for (int y = 0; y < gy; ++y)                                                                       \
                        for (int x = 0; x < gx; ++x) {                                                                 \
                            block_barrier.arrive_and_wait();                                                           \
                            if (i == 0) blockIdx = {x, y, z};                                                          \
                            block_barrier.arrive_and_wait();                                                           \
                            kernel();                                                                                  \
                        }                                                                                              \
            });                                                                                                        \
        for (auto& thread : threads) thread.join();                                                                    \
    }
#define GATHER_ON_CPU(NAME)                                                                                            \
    extern "C" void run_##NAME(int gx, int gy, int gz, const float* a, const float* b, float* c, const int* s) {       \
        launch(gx, gy, gz, [=] { NAME(a, b, c, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]); });        \
    }
#define WEIGHTS_ON_CPU(NAME)                                                                                           \
    extern "C" void run_##NAME(int gx, int gy, int gz, const float* a, const float* b, float* p, float* c, int* r,     \
                               const int* s) {                                                                         \
        launch(gx, gy, gz, [=] { NAME(a, b, p, c, r, s[0], s[1], s[2], s[3], s[4], s[5], s[6], s[7], s[8], s[9]); });  \
    }
