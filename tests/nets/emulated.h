// Blocks of a CUDA kernel on a CPU, one after another. The threads of a block take turns: each runs up to a barrier
// where others are missing. So what is read without a barrier is read before the others have written it, every time.
#include <ucontext.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <deque>
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
static Index blockIdx, gridDim, blockDim;

// ---- threads that take turns ----------------------------------------------------------------------------------------
struct Barrier { int members = 0, arrived = 0, times = 0; };
struct Copy { float* to; const float* from; int floats; bool inside; };
struct Thread {
    Index index;
    int board = 0;
    std::deque<std::vector<Copy>> under_way = {};
    std::vector<Copy> sent_for = {};
    Barrier* waits_at = nullptr;
    int since = 0;
    bool ended = false;
    ucontext_t context = {};
    bool can_run() const { return !ended && (!waits_at || waits_at->times != since); }
};
static Thread* its_turn;
static ucontext_t scheduler;
static Barrier block_barrier, warp_barrier[32];
#define threadIdx (its_turn->index)
static void wait_at(Barrier& barrier) {
    its_turn->since = barrier.times, its_turn->waits_at = &barrier;
    if (++barrier.arrived == barrier.members) barrier.arrived = 0, ++barrier.times;
    else swapcontext(&its_turn->context, &scheduler);
}
static void __syncthreads() { wait_at(block_barrier); }

// ---- what the lanes of a warp do together ---------------------------------------------------------------------------
// They exchange by two boards in turn: when one is written again, all have met at the other and are done reading.
struct Board { float lanes[32], a[16][8], b[8][8]; };
static Board boards[2][32];
static Board& next_board() { return boards[its_turn->board ^= 1][threadIdx.x / 32]; }
static void meet() { wait_at(warp_barrier[threadIdx.x / 32]); }

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
static void land(const Copy& c) {
    if (c.inside) std::memcpy(c.to, c.from, 4 * c.floats);
    else std::memset(c.to, 0, 4 * c.floats);
}
static void send_for(Copy c) {
    if (threadIdx.x % 2) its_turn->sent_for.push_back(c);
    else land(c);
}
static void copy16(float* to, const float* from, bool inside) { send_for({to, from, 4, inside}); }
static void copy4(float* to, const float* from, bool inside) { send_for({to, from, 1, inside}); }
static void commit() {
    its_turn->under_way.push_back(its_turn->sent_for);
    its_turn->sent_for.clear();
}
template <int YOUNGEST> static void wait_for_all_but() {
    auto& under_way = its_turn->under_way;
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

template <class... A> struct Call {
    void (*kernel)(A...);
    std::tuple<A...> args;
};
template <class... A> static void begin(unsigned high, unsigned low) {  // all that a context can be given
    auto& call = *reinterpret_cast<const Call<A...>*>((unsigned long long)high << 32 | low);
    std::apply(call.kernel, call.args);
    commit();
    wait_for_all_but<0>();
    its_turn->ended = true;
}

// Runs the threads of a block, the last first in every second round. Whether all came to an end.
static bool run_block(std::vector<Thread>& threads) {
    for (bool backwards = false, moved = true; moved; backwards = !backwards) {
        moved = false;
        for (size_t i = 0; i < threads.size(); ++i) {
            Thread& thread = threads[backwards ? threads.size() - 1 - i : i];
            if (!thread.can_run()) continue;
            moved = true, its_turn = &thread;
            swapcontext(&scheduler, &thread.context);
        }
    }
    return std::all_of(threads.begin(), threads.end(), [](const Thread& thread) { return thread.ended; });
}

// Whether the kernel kept to its shared memory, and no thread waited for another that had ended.
template <class... A> static bool launch(void (*kernel)(A...), Launch given) {
    constexpr int STACK = 1 << 16;
    const Call<A...> call{kernel, {next<A>(given)...}};
    const auto at = reinterpret_cast<unsigned long long>(&call);
    const int x = given.grid[0], y = given.grid[1], z = given.grid[2], count = given.threads;
    static std::vector<char> stacks;
    stacks.resize(std::max<size_t>(stacks.size(), (size_t)count * STACK));
    gridDim = {x, y, z}, blockDim = {count, 1, 1};
    bool kept = true;
    for (int block = 0; block < x * y * z; ++block) {
        blockIdx = {block % x, block / x % y, block / x / y};
        block_barrier = {count};
        for (int first = 0; first < count; first += 32) warp_barrier[first / 32] = {std::min(32, count - first)};
        for (float& v : of_the_launch) v = NAN;
        std::vector<Thread> threads(count);
        for (int i = 0; i < count; ++i) {
            threads[i].index = {i, 0, 0};
            ucontext_t& context = threads[i].context;
            getcontext(&context);
            context.uc_stack = {&stacks[(size_t)i * STACK], 0, STACK};
            context.uc_link = &scheduler;
            makecontext(&context, (void (*)())begin<A...>, 2, (unsigned)(at >> 32), (unsigned)at);
        }
        kept = run_block(threads) && kept;
        for (int i = given.bytes / 4; i < SHARED_FLOATS; ++i) kept = kept && std::isnan(of_the_launch[i]);
    }
    return kept;
}
#define RUN(NAME)                                                                                                      \
    extern "C" bool run_##NAME(const int* grid, int threads, int bytes, void** pointers, const long long* whole,       \
                               const double* real) {                                                                   \
        return launch(NAME, {{grid[0], grid[1], grid[2]}, threads, bytes, pointers, whole, real});                     \
    }
