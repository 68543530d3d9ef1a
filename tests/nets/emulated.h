// Blocks of a CUDA kernel on a CPU, one after another: a thread for each of a block's, barriers to keep them together.
#include <algorithm>
#include <barrier>
#include <cmath>
#include <cstring>
#include <deque>
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
#define __launch_bounds__(...)
#define __restrict__
using std::sqrt;
struct Index { int x, y, z; };
struct alignas(16) float4 { float x, y, z, w; };
static float4 make_float4(float x, float y, float z, float w) { return {x, y, z, w}; }
static float __fmaf_rn(float a, float b, float c) { return std::fma(a, b, c); }
static thread_local Index threadIdx;
static Index blockIdx, gridDim, blockDim;
static std::unique_ptr<std::barrier<>> block_barrier, warp_barrier[32];
static void __syncthreads() { block_barrier->arrive_and_wait(); }

// ---- what the lanes of a warp do together ---------------------------------------------------------------------------
// They exchange by two boards in turn: when one is written again, all have met at the other and are done reading.
struct Board { float lanes[32], a[16][8], b[8][8]; };
static Board boards[2][32];
static thread_local int turn;
static Board& next_board() { return boards[turn ^= 1][threadIdx.x / 32]; }
static void meet() { warp_barrier[threadIdx.x / 32]->arrive_and_wait(); }

static float __shfl_xor_sync(unsigned, float v, int other) {
    Board& board = next_board();
    int lane = threadIdx.x % 32;
    board.lanes[lane] = v;
    meet();
    return board.lanes[lane ^ other];
}
static unsigned tf32(float v) { unsigned u; std::memcpy(&u, &v, 4); return (u + 0x1000u) & ~0x1fffu; }
static float value(unsigned u) { float v; std::memcpy(&v, &u, 4); return v; }
static void mma(float* c, const unsigned* a, unsigned b0, unsigned b1) {
    Board& board = next_board();
    int lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
    board.a[g][t] = value(a[0]), board.a[g + 8][t] = value(a[1]);
    board.a[g][t + 4] = value(a[2]), board.a[g + 8][t + 4] = value(a[3]);
    board.b[t][g] = value(b0), board.b[t + 4][g] = value(b1);
    meet();
    for (int i = 0; i < 4; ++i)
        for (int k = 0; k < 8; ++k) c[i] += board.a[g + (i & 2 ? 8 : 0)][k] * board.b[k][2 * t + (i & 1)];
}

// ---- asynchronous copies --------------------------------------------------------------------------------------------
// One lands when it likes after being sent for and before being waited for: even threads' at once, odd ones' late.
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
static void store2(float* to, float a, float b) { to[0] = a, to[1] = b; }

// ---- launches -------------------------------------------------------------------------------------------------------
// Shared memory that the launch gives: NaN at first, so that what was never written shows, with a border behind it.
constexpr int SHARED_FLOATS = 1 << 16;
alignas(16) static float of_the_launch[SHARED_FLOATS];
static float* shared() { return of_the_launch; }

struct Launch {
    int grid[3], threads, bytes;
    void** pointers;
    const long long* whole;
    const double* real;
};
template <class T> static T next(Launch& given) {
    if constexpr (std::is_pointer_v<T>) return (T)*given.pointers++;
    else if constexpr (std::is_integral_v<T>) return (T)*given.whole++;
    else return (T)*given.real++;
}

// Whether the kernel kept to its shared memory.
template <class... A> static bool launch(void (*kernel)(A...), Launch given) {
    std::tuple<A...> args{next<A>(given)...};
    const int x = given.grid[0], y = given.grid[1], z = given.grid[2], threads = given.threads;
    gridDim = {x, y, z}, blockDim = {threads, 1, 1};
    block_barrier = std::make_unique<std::barrier<>>(threads);
    for (int first = 0; first < threads; first += 32)
        warp_barrier[first / 32] = std::make_unique<std::barrier<>>(std::min(32, threads - first));
    bool kept = true;
    std::vector<std::thread> running;
    for (int i = 0; i < threads; ++i)
        running.emplace_back([&, i] {
            threadIdx = {i, 0, 0};
            for (int block = 0; block < x * y * z; ++block) {
                __syncthreads();
                if (i == 0) {
                    blockIdx = {block % x, block / x % y, block / x / y};
                    for (float& v : of_the_launch) v = NAN;
                }
                __syncthreads();
                std::apply(kernel, args);
                commit();
                wait_for_all_but<0>();
                __syncthreads();
                if (i == 0)
                    for (int at = given.bytes / 4; at < SHARED_FLOATS; ++at)
                        kept = kept && std::isnan(of_the_launch[at]);
            }
        });
    for (auto& thread : running) thread.join();
    return kept;
}
#define RUN(NAME)                                                                                                      \
    extern "C" bool run_##NAME(const int* grid, int threads, int bytes, void** pointers, const long long* whole,       \
                               const double* real) {                                                                   \
        return launch(NAME, {{grid[0], grid[1], grid[2]}, threads, bytes, pointers, whole, real});                     \
    }
