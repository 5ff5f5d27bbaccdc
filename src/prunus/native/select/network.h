// A sorting network unrolled at compile time, so that a tile is sorted without leaving the registers. Included by the
// vector units inside their unnamed namespace, after `Lanes` with lanes_at, lanes_to, lower and upper.

template <int size>
struct Network {  // Batcher's merge exchange, the same comparisons as sort_rows
    int count = 0;
    int low[64] = {}, high[64] = {};
    constexpr Network() {
        int half = 1;
        while (2 * half < size) half *= 2;
        for (int p = half; p > 0; p /= 2) {
            int q = half, offset = 0, gap = p;
            while (true) {
                for (int i = 0; i + gap < size; ++i)
                    if ((i & p) == offset) {
                        low[count] = i;
                        high[count++] = i + gap;
                    }
                if (q == p) break;
                gap = q - p;
                q /= 2;
                offset = p;
            }
        }
    }
};

template <int size>
constexpr Network<size> network{};

template <int i, int j>
__attribute__((always_inline)) inline void compare(Lanes *lanes) {
    const Lanes a = lanes[i], b = lanes[j];
    lanes[i] = lower(a, b);
    lanes[j] = upper(a, b);
}

template <int size, std::size_t... step>
__attribute__((always_inline)) inline void run_network(Lanes *lanes, std::index_sequence<step...>) {
    (compare<network<size>.low[step], network<size>.high[step]>(lanes), ...);
}

template <int size>
inline void sort_tile(std::int32_t *rows) {
    for (int part = 0; part < 16; part += lane_count) {
        Lanes lanes[size];
        for (int i = 0; i < size; ++i) lanes[i] = lanes_at(rows + 16 * i + part);
        run_network<size>(lanes, std::make_index_sequence<std::size_t(network<size>.count)>{});
        for (int i = 0; i < size; ++i) lanes_to(rows + 16 * i + part, lanes[i]);
    }
}
